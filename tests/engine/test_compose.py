# SPDX-License-Identifier: MIT
"""Composing: options by name, plugins by class, and one report of what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tokenspeed_core
from tokenspeed_core import CompositionError, ConfigError, EngineConfig, ModelError, compose
from tokenspeed_core.assembly import with_options


def test_options_go_to_their_tables() -> None:
    """An option by name changes its key, wherever that is; the rest stays."""
    config = with_options(
        EngineConfig(), {"depth": 0, "page_size": 16, "batch_log": {"interval": 7}}
    )
    assert (config.engine.depth, config.scheduler.page_size) == (0, 16)
    assert config.tables["batch_log"] == {"interval": 7}
    assert config.engine.model == EngineConfig().engine.model


def test_an_unknown_option_names_the_nearest() -> None:
    """A misspelt option is refused with the right name."""
    with pytest.raises(ConfigError, match="did you mean 'page_size'"):
        compose(page_sise=16)


def test_a_value_of_a_wrong_type_is_refused() -> None:
    """A value that does not fit says what was expected."""
    with pytest.raises(ConfigError, match="page_size: expected a whole number, got 'big'"):
        compose(page_size="big")


def test_an_unknown_plugin_is_refused() -> None:
    """A plugin that is not installed is refused before anything is loaded."""
    with pytest.raises(CompositionError, match="unknown plugin 'nope'"):
        compose(data_plane="scripted", plugins=["nope"])


def test_an_unknown_model_names_the_choices() -> None:
    """A model that cannot be is refused with what a model may be."""
    with pytest.raises(ModelError, match=r"'smolm2'; did you mean smollm2-135m"):
        compose("smolm2")


def test_the_public_names_are_there() -> None:
    """Every name the package lists can be had from it, and no other."""
    assert all(hasattr(tokenspeed_core, name) for name in tokenspeed_core.__all__)
    assert not hasattr(tokenspeed_core, "nope")


def test_importing_the_package_is_light() -> None:
    """Importing tokenspeed_core loads neither torch nor numpy."""
    code = "import sys, tokenspeed_core; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
