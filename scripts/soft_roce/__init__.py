"""Soft-RoCE in virtual machines, for tests of RDMA code on machines without an RDMA device.

- cli: the options, and what the exit status means.
- packages: Debian packages, downloaded and unpacked into a cache, never installed.
- image: kernel and initramfs, built from packages.
- machine: one QEMU, from its command line to its end.
- lab: the machines together, and who talks to whom.
- frames: what driver and guests say to each other.
- here: the same commands on a machine that has an RDMA device of its own.
- guest/: what runs inside: init, agent, and the commands on-peer, cable and kill-peer.
"""
