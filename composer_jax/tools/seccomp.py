"""The system calls that code in a box may not make.

Standard library only: this file runs inside the box. The filter is a second
line behind the namespaces. It closes what they leave open: new namespaces (and
with them memory that no limit counts), kernel keyrings, System V and POSIX
queues (state that would outlive a reset), address families that no network
namespace holds back, and files that live in memory alone.
"""

import errno
import struct

# name -> number; numbers from the kernel's unistd tables.
_DENIED = {
  'x86_64': {
    'shmget': 29,
    'semget': 64,
    'msgget': 68,
    'ptrace': 101,
    'pivot_root': 155,
    'mount': 165,
    'umount2': 166,
    'mq_open': 240,
    'add_key': 248,
    'request_key': 249,
    'keyctl': 250,
    'unshare': 272,
    'perf_event_open': 298,
    'setns': 308,
    'process_vm_readv': 310,
    'process_vm_writev': 311,
    'memfd_create': 319,
    'bpf': 321,
    'userfaultfd': 323,
    'io_uring_setup': 425,
    'memfd_secret': 447,
  },
  'aarch64': {
    'umount2': 39,
    'mount': 40,
    'pivot_root': 41,
    'unshare': 97,
    'ptrace': 117,
    'mq_open': 180,
    'msgget': 186,
    'semget': 190,
    'shmget': 194,
    'add_key': 217,
    'request_key': 218,
    'keyctl': 219,
    'perf_event_open': 241,
    'setns': 268,
    'process_vm_readv': 270,
    'process_vm_writev': 271,
    'memfd_create': 279,
    'bpf': 280,
    'userfaultfd': 282,
    'io_uring_setup': 425,
    'memfd_secret': 447,
  },
}
_SOCKET = {'x86_64': 41, 'aarch64': 198}
_CLONE = {'x86_64': 56, 'aarch64': 220}
_CLONE3 = 435
_FOREIGN_ABI = 1 << 30  # First number of x86_64's second table, "x32".
_ARCHITECTURE = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: all inside namespaces.
_CLONE_NEWUSER = 0x10000000

# Offsets into struct seccomp_data, and the words of classic BPF.
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def program(machine: str) -> bytes:
  """The filter for `machine` as packed BPF; empty where it is not known."""
  if machine not in _DENIED:
    return b''
  denied = _ERRNO | errno.EPERM
  steps = [
    (_LOAD, 0, 0, _MACHINE),
    (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
    (_RETURN, 0, 0, _KILL),
    (_LOAD, 0, 0, _NUMBER),
  ]
  refuse = lambda test, value: [(test, 0, 1, value), (_RETURN, 0, 0, denied)]
  steps += refuse(_AT_LEAST, _FOREIGN_ABI)
  for number in _DENIED[machine].values():
    steps += refuse(_EQUAL, number)
  # ENOSYS makes libc fall back to clone(2), whose flags can be looked at.
  steps += [
    (_EQUAL, 0, 1, _CLONE3),
    (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    (_EQUAL, 0, 4, _CLONE[machine]),
    (_LOAD, 0, 0, _ARGUMENT),
    (_ANY_BIT, 0, 1, _CLONE_NEWUSER),
    (_RETURN, 0, 0, denied),
    (_RETURN, 0, 0, _ALLOW),
    (_EQUAL, 0, len(_FAMILIES) + 2, _SOCKET[machine]),
    (_LOAD, 0, 0, _ARGUMENT),
  ]
  for i, family in enumerate(_FAMILIES):
    steps.append((_EQUAL, len(_FAMILIES) - i, 0, family))
  steps += [(_RETURN, 0, 0, denied), (_RETURN, 0, 0, _ALLOW)]
  return b''.join(struct.pack('HBBI', *step) for step in steps)
