"""Property tests draw the same examples in every run, however busy the machine is."""

from hypothesis import settings

settings.register_profile("growbench", deadline=None, derandomize=True)
settings.load_profile("growbench")
