"""What the repository lists is what this checkout measures."""

from enclave_image.measurements import load_measurements, own_digests

AGAIN = (
    "the code that goes into the enclave image changed: review that, run `make measurements`, and "
    "commit enclave_image/measurements.json with it"
)


def test_the_listed_digests_are_this_checkouts():
    assert load_measurements()["ramdisks"] == own_digests(), AGAIN


def test_every_listed_image_was_built_from_the_listed_code():
    listed = load_measurements()
    for entry in listed["references"]:
        for name, own in listed["ramdisks"].items():
            assert entry["ramdisks"][name] == own["sha384"], AGAIN
    for name, pcrs in listed["images"].items():
        [entry] = [entry for entry in listed["references"] if entry["name"] == name]
        assert pcrs["PCR2"] == entry["PCR2"], AGAIN


def test_the_file_has_the_form_that_key_policies_read():
    listed = load_measurements()
    assert listed["schema"] == "luma/measurements/1"
    assert {entry["name"] for entry in listed["references"]} >= {"compiler-cpu"}
    for entry in listed["references"]:
        assert len(bytes.fromhex(entry["PCR2"])) == 48
