"""Run `python -m imagenet_ddp.demo`, which deletes uploaded pictures after a second in place of minutes."""

from imagenet_ddp import demo

if __name__ == "__main__":
    demo.CHECK_S, demo.KEEP_S = 1, 1
    demo.main()
