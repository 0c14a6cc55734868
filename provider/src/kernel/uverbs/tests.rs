use std::any::Any;
use std::cell::RefCell;
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use urxe_ffi::uapi;
use urxe_wire::Gid;

use super::*;
use crate::kernel::memory::UserMemory;

/// Some memory at an address that is nowhere.
struct Memory(RefCell<Vec<u8>>);

const BASE: u64 = 0x7000_0000_0000;
/// Where the tests put answers.
const ANSWER: usize = 2048;

impl Memory {
    fn new() -> Self {
        Self(RefCell::new(vec![0xaa; 4096]))
    }

    fn put(&self, offset: usize, data: &[u8]) -> u64 {
        self.0.borrow_mut()[offset..offset + data.len()].copy_from_slice(data);
        BASE + offset as u64
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        self.0.borrow()[offset..offset + len].to_vec()
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }

    fn offset(address: u64, len: usize, size: usize) -> Result<usize, Errno> {
        let offset = address.checked_sub(BASE).ok_or(Errno(libc::EFAULT))?;
        let offset = usize::try_from(offset).map_err(|_| Errno(libc::EFAULT))?;
        if offset + len <= size { Ok(offset) } else { Err(Errno(libc::EFAULT)) }
    }
}

impl UserMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let memory = self.0.borrow();
        let offset = Self::offset(address, buf.len(), memory.len())?;
        buf.copy_from_slice(&memory[offset..offset + buf.len()]);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        let mut memory = self.0.borrow_mut();
        let offset = Self::offset(address, data.len(), memory.len())?;
        memory[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// Two GIDs on port 1, in a table of 4 rows; rows 1 and 3 are empty.
struct TwoGids;

fn entry(index: u32) -> GidEntry {
    let gid = Gid::new(std::array::from_fn(|i| u8::try_from(i).unwrap() + 16 * u8::try_from(index).unwrap()));
    GidEntry { gid, index, port: 1, gid_type: GidType::RoceV2, netdev_ifindex: 7 }
}

impl Device for TwoGids {
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno> {
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno> {
        self.create_comp_channel()
    }

    fn gid(&self, port: u32, index: u32) -> Result<GidEntry, Errno> {
        match (port, index) {
            (1, 0 | 2) => Ok(entry(index)),
            (1, 1 | 3) => Err(Errno(libc::ENODATA)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        vec![entry(0), entry(2)]
    }

    fn before_close(&self, _fd: RawFd) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// Takes a descriptor that a handler gave away, so that the test does not leak it.
fn take(fd: i32) {
    // SAFETY: the handler has just opened it for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    assert!(fd.as_raw_fd() > 2);
}

fn command(number: u32, in_words: u16, out_words: u16, response: u64) -> Vec<u8> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend(in_words.to_ne_bytes());
    bytes.extend(out_words.to_ne_bytes());
    bytes.extend(response.to_ne_bytes());
    bytes
}

const CREATE: u32 = uapi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL;

#[test]
fn a_comp_channel_is_created_by_write() {
    let memory = Memory::new();
    let command = command(CREATE, 4, 1, BASE + ANSWER as u64);
    assert_eq!(handle_write(&TwoGids, &memory, &command), Ok(16));
    take(i32::from_ne_bytes(memory.get(ANSWER, 4).try_into().unwrap()));
}

#[test]
fn malformed_and_unknown_write_commands_are_refused_as_the_kernel_does() {
    let memory = Memory::new();
    let good = command(CREATE, 4, 1, BASE + ANSWER as u64);
    let refused = |bytes: &[u8]| handle_write(&TwoGids, &memory, bytes).unwrap_err().0;
    for len in 0..8 {
        assert_eq!(refused(&good[..len]), libc::EINVAL, "{len} bytes");
    }
    assert_eq!(refused(&good[..12]), libc::EINVAL, "in_words is not what was written");
    assert_eq!(refused(&command(CREATE, 2, 1, 0)[..8]), libc::ENOSPC, "no command behind the header");
    assert_eq!(refused(&command(CREATE, 4, 0, BASE)), libc::ENOSPC, "no room for the response");
    assert_eq!(refused(&command(CREATE, 4, 1, 8)), libc::EFAULT, "response nowhere");
    let unknown = [uapi::IB_USER_VERBS_CMD_QUERY_DEVICE, uapi::IB_USER_VERBS_CMD_FLAG_EXTENDED | CREATE, u32::MAX];
    for number in unknown {
        assert_eq!(refused(&command(number, 4, 1, BASE)), libc::EOPNOTSUPP, "{number:#x}");
    }
}

/// An attribute: id, length, and value or address.
type Attr = (u32, u16, u64);

const MANDATORY: u16 = 1;
const HEADER: usize = 24;

fn ioctl_bytes(object: u32, method: u32, flags: u16, attrs: &[Attr]) -> Vec<u8> {
    let count = u16::try_from(attrs.len()).unwrap();
    let mut bytes = Vec::new();
    for field in [24 + 16 * count, u16::try_from(object).unwrap(), u16::try_from(method).unwrap(), count] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend([0; 16]);
    for &(id, len, data) in attrs {
        for field in [u16::try_from(id).unwrap(), len, flags, 0] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(data.to_ne_bytes());
    }
    bytes
}

fn ioctl(memory: &Memory, object: u32, method: u32, attrs: &[Attr]) -> Result<(), Errno> {
    let argument = memory.put(0, &ioctl_bytes(object, method, MANDATORY, attrs));
    handle_ioctl(&TwoGids, memory, RDMA_VERBS_IOCTL, argument)
}

const DEVICE: u32 = uapi::UVERBS_OBJECT_DEVICE;

fn query_entry(memory: &Memory, port: u64, index: u64, flags: u64, len: u16) -> Result<(), Errno> {
    let attrs = [
        (uapi::UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 8, port),
        (uapi::UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, 8, index),
        (uapi::UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 4, flags),
        (uapi::UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, len, BASE + ANSWER as u64),
    ];
    ioctl(memory, DEVICE, uapi::UVERBS_METHOD_QUERY_GID_ENTRY, &attrs)
}

fn expected_bytes(index: u32) -> Vec<u8> {
    let entry = entry(index);
    let mut bytes = entry.gid.octets().to_vec();
    for field in [index, 1, uapi::IB_UVERBS_GID_TYPE_ROCE_V2, 7] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes
}

#[test]
fn a_gid_is_queried() {
    let memory = Memory::new();
    assert_eq!(query_entry(&memory, 1, 2, 0, 32), Ok(()));
    assert_eq!(memory.get(ANSWER, 32), expected_bytes(2));
    assert_eq!(memory.get(ANSWER + 32, 1), [0xaa]);
    // The response attribute says so: UVERBS_ATTR_F_VALID_OUTPUT.
    assert_eq!(memory.get(HEADER + 3 * 16 + 4, 2), 3_u16.to_ne_bytes());

    // A caller with a larger struct gets zeros behind it; one with a smaller gets no more than it has room for.
    assert_eq!(query_entry(&memory, 1, 0, 0, 40), Ok(()));
    assert_eq!(memory.get(ANSWER, 41), [expected_bytes(0), vec![0; 8], vec![0xaa]].concat());
    let memory = Memory::new();
    assert_eq!(query_entry(&memory, 1, 0, 0, 24), Ok(()));
    assert_eq!(memory.get(ANSWER, 25), [&expected_bytes(0)[..24], &[0xaa]].concat());
}

#[test]
fn gids_that_are_not_there_are_refused() {
    let memory = Memory::new();
    let refused = |port, index, flags, len| query_entry(&memory, port, index, flags, len).unwrap_err().0;
    assert_eq!(refused(1, 1, 0, 32), libc::ENODATA);
    assert_eq!(refused(1, 4, 0, 32), libc::EINVAL);
    assert_eq!(refused(2, 0, 0, 32), libc::EINVAL);
    assert_eq!(refused(1 << 32, 0, 0, 32), libc::EINVAL);
    assert_eq!(refused(1, 0, 1, 32), libc::EINVAL, "no flag is known");
    assert_eq!(refused(1, 0, 0, 0), libc::EINVAL);
    assert_eq!(memory.get(ANSWER, 32), [0xaa; 32]);
}

fn query_table(memory: &Memory, entry_size: u64, len: u16) -> Result<(), Errno> {
    let attrs = [
        (uapi::UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, 8, entry_size),
        (uapi::UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 4, 0),
        (uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, len, BASE + ANSWER as u64),
        (uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, 8, BASE + ANSWER as u64 - 8),
    ];
    ioctl(memory, DEVICE, uapi::UVERBS_METHOD_QUERY_GID_TABLE, &attrs)
}

#[test]
fn the_gid_table_is_queried() {
    let memory = Memory::new();
    assert_eq!(query_table(&memory, 32, 96), Ok(()));
    assert_eq!(memory.u64(ANSWER - 8), 2);
    assert_eq!(memory.get(ANSWER, 65), [expected_bytes(0), expected_bytes(2), vec![0xaa]].concat());

    let memory = Memory::new();
    assert_eq!(query_table(&memory, 40, 80), Ok(()));
    let padded = [expected_bytes(0), vec![0; 8], expected_bytes(2), vec![0; 8]].concat();
    assert_eq!(memory.get(ANSWER, 80), padded);

    for (entry_size, len) in [(32, 32), (32, 70), (0, 64), (32, 0)] {
        assert_eq!(query_table(&memory, entry_size, len), Err(Errno(libc::EINVAL)), "{entry_size} {len}");
    }
}

#[test]
fn an_async_fd_is_allocated() {
    let memory = Memory::new();
    let attrs = [(uapi::UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, 0, 0)];
    let result = ioctl(&memory, uapi::UVERBS_OBJECT_ASYNC_EVENT, uapi::UVERBS_METHOD_ASYNC_EVENT_ALLOC, &attrs);
    assert_eq!(result, Ok(()));
    take(i32::try_from(memory.u64(HEADER + 8)).unwrap());
}

#[test]
fn a_comp_channel_is_created_by_ioctl() {
    let memory = Memory::new();
    let invoke = |attrs: &[Attr]| ioctl(&memory, DEVICE, uapi::UVERBS_METHOD_INVOKE_WRITE, attrs);
    let create = (uapi::UVERBS_ATTR_WRITE_CMD, 8, u64::from(CREATE));
    let input = (uapi::UVERBS_ATTR_CORE_IN, 8, 0);
    let output = (uapi::UVERBS_ATTR_CORE_OUT, 4, BASE + ANSWER as u64);
    assert_eq!(invoke(&[create, input, output]), Ok(()));
    take(i32::from_ne_bytes(memory.get(ANSWER, 4).try_into().unwrap()));

    assert_eq!(invoke(&[create, input]), Err(Errno(libc::ENOSPC)));
    assert_eq!(invoke(&[create, output]), Err(Errno(libc::ENOSPC)));
    assert_eq!(invoke(&[input, output]), Err(Errno(libc::EINVAL)));
    // How libibverbs finds out whether write commands may come as ioctls: neither ENOTTY nor EPROTONOSUPPORT.
    let query = (uapi::UVERBS_ATTR_WRITE_CMD, 8, u64::from(uapi::IB_USER_VERBS_CMD_QUERY_DEVICE));
    assert_eq!(invoke(&[query]), Err(Errno(libc::EOPNOTSUPP)));
}

#[test]
fn unknown_ioctls_make_libibverbs_fall_back() {
    let memory = Memory::new();
    // Another ioctl altogether: no uverbs here.
    assert_eq!(handle_ioctl(&TwoGids, &memory, 0x5401, BASE), Err(Errno(libc::ENOTTY)));
    // Unknown object, method, or attribute that matters.
    let unsupported = Err(Errno(libc::EPROTONOSUPPORT));
    assert_eq!(ioctl(&memory, 999, 0, &[]), unsupported);
    assert_eq!(ioctl(&memory, DEVICE, uapi::UVERBS_METHOD_QUERY_PORT, &[]), unsupported);
    assert_eq!(ioctl(&memory, DEVICE, uapi::UVERBS_METHOD_INVOKE_WRITE, &[(77, 0, 0)]), unsupported);
    // One that does not matter is passed over: what is missing is what comes next.
    let bytes = ioctl_bytes(DEVICE, uapi::UVERBS_METHOD_INVOKE_WRITE, 0, &[(77, 0, 0)]);
    let argument = memory.put(0, &bytes);
    assert_eq!(handle_ioctl(&TwoGids, &memory, RDMA_VERBS_IOCTL, argument), Err(Errno(libc::EINVAL)));
}

#[test]
fn malformed_ioctls_are_refused() {
    let memory = Memory::new();
    let good = ioctl_bytes(DEVICE, uapi::UVERBS_METHOD_QUERY_GID_ENTRY, MANDATORY, &[(0, 8, 1), (1, 8, 0)]);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let argument = memory.put(0, &bytes);
        handle_ioctl(&TwoGids, &memory, RDMA_VERBS_IOCTL, argument).unwrap_err().0
    };
    assert_eq!(refused(&|bytes| bytes[0] += 1), libc::EINVAL, "length");
    assert_eq!(refused(&|bytes| bytes[6] += 1), libc::EINVAL, "num_attrs");
    assert_eq!(refused(&|bytes| bytes[8] = 1), libc::EPROTONOSUPPORT, "reserved1");
    assert_eq!(refused(&|bytes| bytes[20] = 1), libc::EPROTONOSUPPORT, "reserved2");
    assert_eq!(refused(&|bytes| bytes[HEADER + 16] = 0), libc::EINVAL, "the same attribute twice");
    assert_eq!(refused(&|bytes| bytes[HEADER + 2] = 4), libc::EINVAL, "a constant of 4 bytes");
    for argument in [0, BASE - 1, u64::MAX, BASE + 4090] {
        let result = handle_ioctl(&TwoGids, &memory, RDMA_VERBS_IOCTL, argument);
        assert_eq!(result, Err(Errno(libc::EFAULT)), "{argument:#x}");
    }
}
