"""What keeps a command from being run, said so that a reader can mend it."""


class SetupError(Exception):
    """Something is missing or failed before the command could run; the text says what to do."""


class BootError(SetupError):
    """A guest did not come up at all: the one failure that another accelerator may mend."""
