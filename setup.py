"""Build what pyproject.toml cannot name: the commented `config/broker.conf` goes into the wheel, beside its reader."""

from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCommentedConfig(build_py):
    """Builds the packages, and puts the one `broker.conf` of the project into `postdate.broker.configuration`."""

    def run(self) -> None:
        """Build the package with the configuration file in it; an editable install reads it where it is."""
        super().run()
        if not self.editable_mode:
            copyfile("config/broker.conf", Path(self.build_lib, "postdate/broker/configuration/broker.conf"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        copied = Path(self.build_lib, "postdate/broker/configuration/broker.conf")
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else [str(copied)])]


setup(cmdclass={"build_py": BuildWithCommentedConfig})
