"""Property tests draw the same examples in every run, however busy the machine is; one toy run serves many tests."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import toy

settings.register_profile("growbench", deadline=None, derandomize=True)
settings.load_profile("growbench")


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> "toy.Run":
    """A finished run that tests read and copy, and none alters."""
    import toy

    return toy.run(tmp_path_factory.mktemp("toy"))
