"""A download is bounded, and stays only where it is known to be whole."""

import contextlib
import http.server
import threading
import time
from pathlib import Path

import pytest
import torch

from mmsoft.checkpoints import CheckpointError, read_checkpoint
from mmsoft.weights import sources
from mmsoft.weights.writing import to_bytes


class Sender(http.server.BaseHTTPRequestHandler):
    """Sends ``body``, as the last part of the address says."""

    body = b''

    def do_GET(self):
        way = Path(self.path).stem
        self.protocol_version = 'HTTP/1.0' if way.startswith('plain') else 'HTTP/1.1'
        self.send_response(200)
        if way == 'long':
            self.send_header('Content-Length', str(10**12))
        elif not way.startswith('plain'):
            self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # who asked has had enough
            self.send_body(way)

    def send_body(self, way):
        chunked = not way.startswith('plain')
        while True:
            content = self.body[: len(self.body) // 2] if way.endswith('cut') else self.body
            content = b'slowly' if way.endswith('slow') else content
            self.wfile.write(b'%x\r\n%s\r\n' % (len(content), content) if chunked else content)
            self.wfile.flush()
            if way.endswith('slow'):
                time.sleep(0.02)
            elif not way.endswith('endless'):
                break
        if way == 'chunks':
            self.wfile.write(b'0\r\n\r\n')

    def log_message(self, *_):
        pass


@pytest.fixture
def sender(tmp_path, monkeypatch):
    """The address of a server, and the folder where downloads stay."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Sender) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_only_whole_downloads_stay(sender, tmp_path, monkeypatch, suffix):
    weights = dict(a=torch.randn(100, 100))
    monkeypatch.setattr(Sender, 'body', to_bytes(weights, suffix))
    monkeypatch.setattr(sources, 'LARGEST', 10**6)
    monkeypatch.setattr(sources, '_PATIENCE', 0.5)
    for way, message in (
        ('plain_cut', 'came without a length, and it does not look whole'),
        ('cut', 'IncompleteRead'),
        ('long', 'it has 1000000000000 bytes, more than the 1000000 that are taken'),
        ('endless', 'it has more than the 1000000 bytes that are taken'),
        ('plain_endless', 'it has more than the 1000000 bytes that are taken'),
        ('slow', 'more slowly than 10000 bytes a second'),
        ('plain_slow', 'more slowly than 10000 bytes a second'),
    ):
        with pytest.raises(CheckpointError, match=rf'{way}{suffix} cannot be fetched: .*{message}'):
            read_checkpoint(f'{sender}/{way}{suffix}')
        assert not [path for path in (tmp_path / 'hub').rglob('*') if path.is_file()]
    for way in ('plain', 'chunks'):
        found = read_checkpoint(f'{sender}/{way}{suffix}')
        assert list(found) == ['a']
        assert torch.equal(found['a'], weights['a'])
    assert len([path for path in (tmp_path / 'hub').rglob('*') if path.is_file()]) == 2
