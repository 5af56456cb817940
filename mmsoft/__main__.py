"""``python -m mmsoft`` is the command ``mmsoft``."""

from mmsoft.cli import main

if __name__ == '__main__':
    main()
