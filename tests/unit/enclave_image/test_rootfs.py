"""The ramdisks together: no path of one hides another's."""

import pytest

from enclave_image.cpio import Directory, File, Symlink
from enclave_image.rootfs import Ramdisk, boot_ramdisk, check_paths, code_ramdisk
from runtime.spec.errors import ArtifactError


def ramdisks(one, two):
    return (Ramdisk(name="one", entries=one), Ramdisk(name="two", entries=two))


def test_our_own_ramdisks_share_no_path():
    check_paths((boot_ramdisk(), code_ramdisk()))


def test_folders_may_be_shared():
    check_paths(
        ramdisks((File("a/b/x", b""), Directory("c")), (File("a/b/y", b""), Directory("c")))
    )


@pytest.mark.parametrize(
    ("one", "two", "path"),
    [
        (File("a/x", b"1"), File("a/x", b"1"), "a/x"),
        (File("a/x", b"1"), Symlink("a/x", "y"), "a/x"),
        (Symlink("lib", "usr/lib"), File("lib/l.so", b""), "lib"),
        (File("a", b""), File("a/x", b""), "a"),
        (Directory("a"), File("a", b""), "a"),
        (Directory("tmp", 0o1777), File("tmp/x", b""), "tmp"),
    ],
    ids=["file", "link", "link for a folder", "file for a folder", "folder for a file", "mode"],
)
def test_a_path_in_two_ramdisks_is_refused(one, two, path):
    for first, second in ((one, two), (two, one)):
        with pytest.raises(ArtifactError, match=f"'{path}' is in the ramdisk one and in two"):
            check_paths(ramdisks((first,), (second,)))
