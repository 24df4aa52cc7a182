import pytest

from runtime.spec import load_catalogue
from runtime.spec.units import check_target


def test_every_row_is_typed_and_named_once():
    catalogue = load_catalogue()
    names = [row.name for row in catalogue.accelerators]
    assert len(names) == len(set(names)) > 50
    assert load_catalogue() is catalogue


def test_every_target_of_the_catalogue_is_one_that_a_job_may_name():
    for row in load_catalogue().accelerators:
        if row.compile_target is not None:
            assert check_target(row.compile_target) == row.compile_target


def test_rows_that_were_recalled_say_which_figures():
    for row in load_catalogue().accelerators:
        assert (row.checked == "memory") == bool(row.memory_fields), row.name
        assert set(row.memory_fields) <= set(type(row).model_fields), row.name


def test_look_ups():
    catalogue = load_catalogue()
    row = catalogue.by_name("p5.48xlarge")
    assert (row.chip, row.count, row.compile_target) == ("H100", 8, "cuda-sm90")
    assert row in catalogue.by_chip("h100")
    assert row in catalogue.by_target("cuda-sm90")
    assert catalogue.by_chip("abacus") == ()
    with pytest.raises(KeyError):
        catalogue.by_name("p99.huge")
