"""The enclave: its image (an EIF), that image's measurements, and what runs inside it.

`eif` writes and reads the image file, `cpio` its ramdisks, `build` makes the whole of it, and
`init` is the first process of the booted enclave. Nothing is imported here: what runs inside the
image imports single modules of this package, and the image holds no others.
"""
