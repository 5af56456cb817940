#!/usr/bin/env bash
# Sets up everything mmsoft needs, in the order that works: torch, mmcv built against that torch, the rest.
#
#   bash tools/install.sh --venv .venv        a virtual environment of its own (what `make` does)
#   bash tools/install.sh                     the Python environment that is active: its torch is kept, other
#                                             libraries are brought to the tested versions
#
#   --stack onedl|classic   the maintained OpenMMLab line (default) or the original one with torch 2.1
#   --cuda-ops auto|on|off  mmcv's CUDA operators: auto builds them where a CUDA toolkit of torch's major
#                           version and a GPU are present; on needs no GPU (for clusters)
#
# It can be stopped and started again at any point: what is done is kept, compiled files included.
set -euo pipefail

stack=onedl venv='' cuda_ops=auto
while (($#)); do
  case $1 in
    --stack) stack=${2:?--stack takes onedl or classic}; shift 2 ;;
    --venv) venv=${2:?--venv takes a directory}; shift 2 ;;
    --cuda-ops) cuda_ops=${2:?--cuda-ops takes auto, on or off}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "install: unknown option '$1'; try --help" >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mmsoft
started=$SECONDS
say() { printf '[%3d s] %s\n' $((SECONDS - started)) "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }

case $stack in
  onedl) requirements=$root/requirements.txt newest=12 mmcv=onedl-mmcv ;;
  classic) requirements=$root/tools/requirements_classic.txt newest=11 mmcv=mmcv ;;
  *) die "unknown stack '$stack'; choose onedl or classic" ;;
esac
case $cuda_ops in auto | on | off) ;; *) die "--cuda-ops is auto, on or off; got '$cuda_ops'" ;; esac
pinned() { sed -n "s/^$1==//p" "$requirements"; }

fits() { # a Python that runs, is of a supported version and has its headers
  "$1" - "$newest" 2>/dev/null <<'PY'
import os, sys, sysconfig
newest = int(sys.argv[1])
if not (3, 10) <= sys.version_info[:2] <= (3, newest):
    sys.exit(1)
if not os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')):
    sys.exit(1)
PY
}

stamp=$({ echo "$root $stack $cuda_ops"; cat "$requirements" "$0" "$root/setup.py"; } | sha256sum | cut -c1-16)
if [[ $venv ]]; then
  if [[ -f $venv/.mmsoft-stack && $(<"$venv/.mmsoft-stack") != "$stack" ]]; then
    die "$venv holds the $(<"$venv/.mmsoft-stack") stack; give --venv (with make: VENV=) another directory for $stack"
  fi
  if [[ -f $venv/.mmsoft-installed && $(<"$venv/.mmsoft-installed") == "$stamp" ]]; then
    exit 0 # complete, and nothing that it was made from has changed
  fi
  if [[ ! -x $venv/bin/python ]]; then
    base=''
    if [[ ${PYTHON:-} ]]; then
      fits "$PYTHON" || die "PYTHON=$PYTHON will not do: it must be Python 3.10 to 3.$newest with its headers"
      base=$PYTHON
    fi
    for candidate in ${base:+"$base"} python3.11 python3.10 python3.12 python3 python; do
      if command -v "$candidate" >/dev/null && fits "$candidate"; then base=$candidate; break; fi
    done
    [[ $base ]] || die "no Python 3.10 to 3.$newest with its headers was found; install one (on Debian or Ubuntu: \
apt-get install python3 python3-venv python3-dev), or name one with PYTHON=/path/to/python"
    say "making a virtual environment in $venv with $("$base" --version)"
    "$base" -m venv "$venv" || die "$base could not make a virtual environment; on Debian or Ubuntu: apt-get install python3-venv"
  fi
  echo "$stack" >"$venv/.mmsoft-stack"
  python=$(cd "$venv" && pwd)/bin/python
  export PATH=${python%/python}:$PATH # ninja lies there
else
  python=$(command -v python || command -v python3) || die 'no python is active; use --venv DIR to make an environment'
fi
fits "$python" || die "$("$python" --version 2>&1) at $python will not do: the $stack stack needs Python 3.10 to 3.$newest with its headers (python3-dev)"
command -v c++ >/dev/null || command -v g++ >/dev/null || die 'no C++ compiler was found; mmcv is compiled here (on Debian or Ubuntu: apt-get install g++)'

mkdir -p "$cache"
if command -v flock >/dev/null; then # two installations must not compile into one place
  exec 9>"$cache/lock"
  flock -n 9 || { say 'waiting for another installation to end'; flock 9; }
fi
pip=("$python" -m pip --disable-pip-version-check)
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
rest() { grep -vE "^(torch|torchvision|$mmcv)==|^#|^$" "$requirements"; }

say "installing the $stack stack into $("$python" -c 'import sys; print(sys.prefix)')"
say '1 of 5: build tools'
"${pip[@]}" install -q ninja psutil packaging wheel "$(grep '^setuptools' "$requirements")"

torch_version() { "$python" -c 'import torch; print(torch.__version__)' 2>/dev/null; }
if found=$(torch_version); then
  [[ $stack == onedl || $(cut -d. -f1-2 <<<"$found") == 2.[1-9]* ]] || die "the classic stack needs torch >= 2.1, found $found"
  say "2 of 5: torch $found is installed and is kept"
  minor=$(cut -d. -f2 <<<"$found")
  [[ $stack == classic || $(cut -d. -f1 <<<"$found") -gt 2 || $minor -ge 4 ]] ||
    die "the onedl stack needs torch >= 2.4, found $found; upgrade it, or use --stack classic"
  vision="torchvision==0.$((minor + 15)).*"
else
  again=()
  if "$python" -c 'import importlib.metadata as m; m.version("torch")' >/dev/null 2>&1; then
    [[ $venv ]] || die "torch is installed but does not import (try: $python -c 'import torch'); mend or uninstall it, then run this again"
    again=(--ignore-installed) # an interrupted run left a part of it in our own environment
  fi
  say "2 of 5: torch $(pinned torch) (a gigabyte or more to fetch; a minute on a fast line)"
  "${pip[@]}" install "${again[@]}" "torch==$(pinned torch)" "torchvision==$(pinned torchvision)" "$(grep '^numpy' "$requirements")"
  found=$(torch_version) || die 'torch was installed but does not import'
  vision="torchvision==$(pinned torchvision)"
fi
as_constraint() { # the version that pip knows, which may lack the +cu130 of torch.__version__
  "$python" -c 'import sys, importlib.metadata as m; print(sys.argv[1], m.version(sys.argv[1]), sep="==")' "$1"
}
as_constraint torch >"$constraints"
"$python" -c 'import torchvision' 2>/dev/null || "${pip[@]}" install -q -c "$constraints" "$vision"
"$python" -c 'import torchvision' 2>/dev/null ||
  die "torchvision does not work with torch $found; install $vision from where that torch came from, then run this again"
as_constraint torchvision >>"$constraints"
rest | grep -E '^(numpy|opencv)' >>"$constraints"

wants_cuda() {
  "$python" - "$cuda_ops" 2>/dev/null <<'PY'
import os, re, subprocess, sys
import torch
from torch.utils.cpp_extension import CUDA_HOME
choice = sys.argv[1]
places = [os.environ.get('CUDA_HOME'), CUDA_HOME, '/usr/local/cuda'] # a toolkit has headers; a wrapper of nvcc has not
CUDA_HOME = next((p for p in places if p and os.path.exists(os.path.join(p, 'include', 'cuda_runtime.h'))), None)
release = ''
if CUDA_HOME:
    told = subprocess.run([os.path.join(CUDA_HOME, 'bin', 'nvcc'), '--version'], capture_output=True, text=True).stdout
    release = (re.search(r'release ([\d.]+)', told) or ['', ''])[1]
if choice == 'off':
    print('CPU operators (--cuda-ops off)')
elif torch.version.cuda is None:
    print('CPU operators (this torch is a CPU build)')
elif CUDA_HOME is None:
    print('CPU operators (no CUDA toolkit was found; CUDA_HOME names one)')
elif release.split('.')[0] != torch.version.cuda.split('.')[0]:
    print(f'CPU operators (the CUDA toolkit at {CUDA_HOME} is {release or "unknown"}, torch was built for {torch.version.cuda})')
elif choice == 'auto' and not torch.cuda.is_available():
    print(f'CPU operators (CUDA {release} is at {CUDA_HOME} but no GPU is visible; --cuda-ops on compiles for CUDA all the same)')
else:
    print(f'CUDA operators with CUDA {release} at {CUDA_HOME}')
    sys.exit(0)
sys.exit(1)
PY
}
works() { # mmcv of this stack, whose operators import and are of the kind asked for
  "$python" - "$mmcv" "$cuda_ops" "$stack" 2>/dev/null <<'PY'
import importlib.metadata, sys
from mmcv.ops import get_compiling_cuda_version, nms
distribution, cuda_ops, stack = sys.argv[1:]
version = importlib.metadata.version(distribution)
if stack == 'classic' and not version.startswith('2.1.'):
    sys.exit(1)
if cuda_ops == 'on' and get_compiling_cuda_version() == 'not available':
    sys.exit(1)
print(version)
PY
}
mend_cv2() { # opencv-python wants libGL, which servers lack; the headless build takes its place under the same name
  local version
  if version=$("$python" -c 'import importlib.metadata as m; print(m.version("opencv-python"))' 2>/dev/null) &&
    ! "$python" -c 'import cv2' 2>/dev/null; then
    say "        cv2 does not import here (libGL is missing): opencv-python-headless $version replaces it"
    "${pip[@]}" install -q --force-reinstall --no-deps "opencv-python-headless==$version"
  fi
}
mend_cv2
if version=$(works); then
  say "3 of 5: mmcv $version works with this torch and is kept"
else
  if plan=$(wants_cuda); then kind=cuda; else kind=cpu; fi
  [[ $cuda_ops != on || $kind == cuda ]] || die "--cuda-ops on: impossible here: $plan"
  version=$(pinned "$mmcv")
  key=$mmcv-$version-torch$found-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')-$kind
  wheels=$cache/wheels/$key
  if ! compgen -G "$wheels/*.whl" >/dev/null; then
    say "3 of 5: compiling mmcv $version, $plan: about 6 minutes on two cores for CPU operators, much more for CUDA; kept in $wheels"
    source=$cache/build/$key
    if [[ ! -d $source ]]; then
      rm -rf "$cache"/unpack.* # what an interrupted run left; the lock is ours
      unpack=$(mktemp -d "$cache/unpack.XXXX")
      "${pip[@]}" download -q --no-deps --no-binary :all: --no-build-isolation -d "$unpack" "$mmcv==$version"
      tar -xzf "$unpack"/*.tar.gz -C "$unpack"
      mkdir -p "$cache/build"
      mv "$unpack"/*/ "$source"
      rm -rf "$unpack"
    fi
    log=$cache/build/$key.log
    # ninja goes on where an interrupted build stopped; its counter is the progress shown
    home=$(sed -n 's/^CUDA operators with CUDA [^ ]* at //p' <<<"$plan")
    (
      export MMCV_WITH_OPS=1 MAX_JOBS=${MAX_JOBS:-$(nproc)}
      if [[ $kind == cuda ]]; then export FORCE_CUDA=1 CUDA_HOME=$home; else export FORCE_CUDA=0 CUDA_VISIBLE_DEVICES=''; fi
      cd "$source" && "${pip[@]}" wheel . -v --no-build-isolation --no-deps -w "$wheels.partial" 2>&1
    ) | tee "$log" | awk '
      match($0, /^ *\[[0-9]+\/[0-9]+\]/) {
        split(substr($0, RSTART, RLENGTH), n, /[^0-9]+/); tenth = int(10 * n[2] / n[3])
        if (tenth > last) { printf "        compiled %d of %d files\n", n[2], n[3]; fflush(); last = tenth }
      }' || { tail -n 25 "$log" >&2; die "compiling mmcv failed; the whole log is $log"; }
    mkdir -p "$cache/wheels"
    rm -rf "$wheels"
    mv "$wheels.partial" "$wheels"
    rm -rf "$source"
  else
    say "3 of 5: mmcv $version, compiled earlier for this torch"
  fi
  "${pip[@]}" install -q --force-reinstall --no-deps "$wheels"/*.whl
  "${pip[@]}" install -q -c "$constraints" "$wheels"/*.whl
  mend_cv2
fi

say "4 of 5: mmdet, mmseg, timm and what they use, at the versions of ${requirements##*/} (half a minute)"
rest | "${pip[@]}" install -q --no-build-isolation -c "$constraints" -r /dev/stdin
mend_cv2
say '5 of 5: mmsoft itself, from this checkout'
"${pip[@]}" install -q --no-build-isolation --no-deps -e "$root"
(cd / && "$python" -m mmsoft.versions)
[[ -z $venv ]] || echo "$stamp" >"$venv/.mmsoft-installed"
say 'done'
