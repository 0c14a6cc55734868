//! Commands by ioctl(2): `ib_uverbs_ioctl_hdr`, then attributes, each with its value or the address of it.

use std::os::fd::{AsRawFd, IntoRawFd};

use urxe_ffi::uapi;

use super::write::Command;
use super::{Device, GidEntry, GidType};
use crate::kernel::Errno;
use crate::kernel::memory::{Fields, UserMemory};

/// `RDMA_VERBS_IOCTL` of `<rdma/rdma_user_ioctl_cmds.h>`: `_IOWR(RDMA_IOCTL_MAGIC, 1, struct ib_uverbs_ioctl_hdr)`.
pub const RDMA_VERBS_IOCTL: u64 =
    (READ_WRITE << 30) | ((HEADER as u64) << 16) | ((uapi::RDMA_IOCTL_MAGIC as u64) << 8) | 1;
/// `_IOC_READ | _IOC_WRITE`.
const READ_WRITE: u64 = 3;

/// Size of `ib_uverbs_ioctl_hdr`.
const HEADER: usize = size_of::<uapi::ib_uverbs_ioctl_hdr>();
/// Size of `ib_uverbs_attr`.
const ATTR: usize = size_of::<uapi::ib_uverbs_attr>();
/// Offset of `ib_uverbs_attr::flags`.
const ATTR_FLAGS: u64 = 4;
/// Offset of `ib_uverbs_attr::data`.
const ATTR_DATA: u64 = 8;
/// Values of up to this many bytes are in the attribute itself.
const INLINE: usize = 8;
/// The kernel takes a page of attributes at most.
const MAX_LENGTH: usize = 4096;

/// `UVERBS_ATTR_F_*`, as wide as `ib_uverbs_attr::flags`.
const MANDATORY: u16 = 1 << 0;
const VALID_OUTPUT: u16 = 1 << 1;

/// The (object, method) pairs that we answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    InvokeWrite,
    QueryGidTable,
    QueryGidEntry,
    AsyncEventAlloc,
}

/// Executes ioctl(2) with `argument` on a uverbs file.
///
/// The checks and their errnos are those of the kernel's `uverbs_ioctl.c`.
pub fn handle_ioctl(device: &dyn Device, memory: &dyn UserMemory, request: u64, argument: u64) -> Result<(), Errno> {
    if request != RDMA_VERBS_IOCTL {
        return Err(Errno(libc::ENOTTY));
    }
    let call = Call::read(memory, argument)?;
    match call.method {
        Method::InvokeWrite => call.invoke_write(device),
        Method::QueryGidTable => call.query_gid_table(device),
        Method::QueryGidEntry => call.query_gid_entry(device),
        Method::AsyncEventAlloc => call.alloc_async_event(device),
    }
}

impl Method {
    fn from_numbers(object: u16, method: u16) -> Result<Self, Errno> {
        match (u32::from(object), u32::from(method)) {
            (uapi::UVERBS_OBJECT_DEVICE, uapi::UVERBS_METHOD_INVOKE_WRITE) => Ok(Self::InvokeWrite),
            (uapi::UVERBS_OBJECT_DEVICE, uapi::UVERBS_METHOD_QUERY_GID_TABLE) => Ok(Self::QueryGidTable),
            (uapi::UVERBS_OBJECT_DEVICE, uapi::UVERBS_METHOD_QUERY_GID_ENTRY) => Ok(Self::QueryGidEntry),
            (uapi::UVERBS_OBJECT_ASYNC_EVENT, uapi::UVERBS_METHOD_ASYNC_EVENT_ALLOC) => Ok(Self::AsyncEventAlloc),
            _ => Err(Errno(libc::EPROTONOSUPPORT)),
        }
    }

    /// The attributes it understands.
    const fn attributes(self) -> &'static [u32] {
        match self {
            Self::InvokeWrite => &[
                uapi::UVERBS_ATTR_WRITE_CMD,
                uapi::UVERBS_ATTR_CORE_IN,
                uapi::UVERBS_ATTR_CORE_OUT,
                uapi::UVERBS_ATTR_UHW_IN,
                uapi::UVERBS_ATTR_UHW_OUT,
            ],
            Self::QueryGidTable => &[
                uapi::UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE,
                uapi::UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
                uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
                uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
            ],
            Self::QueryGidEntry => &[
                uapi::UVERBS_ATTR_QUERY_GID_ENTRY_PORT,
                uapi::UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
                uapi::UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS,
                uapi::UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
            ],
            Self::AsyncEventAlloc => &[uapi::UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE],
        }
    }
}

/// One attribute as it came.
#[derive(Clone, Copy)]
struct Attr {
    /// Where it lies in the caller's memory.
    address: u64,
    id: u16,
    len: u16,
    flags: u16,
    data: u64,
}

/// An ioctl, checked as far as all methods are alike.
struct Call<'a> {
    memory: &'a dyn UserMemory,
    method: Method,
    attrs: Vec<Attr>,
}

impl<'a> Call<'a> {
    fn read(memory: &'a dyn UserMemory, argument: u64) -> Result<Self, Errno> {
        let invalid = Errno(libc::EINVAL);
        let mut header = [0; HEADER];
        memory.read(argument, &mut header)?;
        let mut fields = Fields(&header);
        let (Some(length), Some(object), Some(method), Some(num_attrs)) =
            (fields.u16(), fields.u16(), fields.u16(), fields.u16())
        else {
            return Err(invalid);
        };
        let (Some(reserved1), Some(_driver_id), Some(reserved2)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Err(invalid);
        };
        let length = usize::from(length);
        if length > MAX_LENGTH || length != HEADER + usize::from(num_attrs) * ATTR {
            return Err(invalid);
        }
        if reserved1 != 0 || reserved2 != 0 {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let method = Method::from_numbers(object, method)?;

        let start = argument.checked_add(HEADER as u64).ok_or(Errno(libc::EFAULT))?;
        let mut bytes = vec![0; length - HEADER];
        memory.read(start, &mut bytes)?;
        let mut attrs: Vec<Attr> = Vec::with_capacity(usize::from(num_attrs));
        for (chunk, index) in bytes.chunks_exact(ATTR).zip(0_u64..) {
            let mut fields = Fields(chunk);
            let (Some(id), Some(len), Some(flags), Some(_attr_data), Some(data)) =
                (fields.u16(), fields.u16(), fields.u16(), fields.u16(), fields.u64())
            else {
                return Err(invalid);
            };
            if !method.attributes().contains(&u32::from(id)) {
                if flags & MANDATORY != 0 {
                    return Err(Errno(libc::EPROTONOSUPPORT));
                }
                continue;
            }
            if attrs.iter().any(|attr| attr.id == id) {
                return Err(invalid);
            }
            attrs.push(Attr { address: start + index * ATTR as u64, id, len, flags, data });
        }
        Ok(Self { memory, method, attrs })
    }

    fn attr(&self, id: u32) -> Option<Attr> {
        self.attrs.iter().copied().find(|attr| u32::from(attr.id) == id)
    }

    /// An attribute without which the method does nothing.
    fn required(&self, id: u32) -> Result<Attr, Errno> {
        self.attr(id).ok_or(Errno(libc::EINVAL))
    }

    /// A number, passed inside the attribute as 64 bits.
    fn constant(&self, id: u32) -> Result<u64, Errno> {
        let attr = self.required(id)?;
        if usize::from(attr.len) == INLINE { Ok(attr.data) } else { Err(Errno(libc::EINVAL)) }
    }

    /// Flags, of which none is known: absent, or zero in 32 or 64 bits.
    fn no_flags(&self, id: u32) -> Result<(), Errno> {
        let Some(attr) = self.attr(id) else { return Ok(()) };
        let flags = match attr.len {
            4 => Fields(&attr.data.to_ne_bytes()).u32().map(u64::from),
            8 => Some(attr.data),
            _ => None,
        };
        if flags == Some(0) { Ok(()) } else { Err(Errno(libc::EINVAL)) }
    }

    /// Stores an answer where the attribute points to, and says that it is there.
    fn answer(&self, attr: Attr, data: &[u8]) -> Result<(), Errno> {
        self.memory.write(attr.data, data)?;
        self.mark_output(attr)
    }

    fn mark_output(&self, attr: Attr) -> Result<(), Errno> {
        self.memory.write(attr.address + ATTR_FLAGS, &(attr.flags | VALID_OUTPUT).to_ne_bytes())
    }

    /// A write command in the shape of an ioctl. libibverbs finds out whether we have this by asking for one without
    /// its arguments (`has_ioctl_write` in its `device.c`).
    fn invoke_write(&self, device: &dyn Device) -> Result<(), Errno> {
        let command = Command::from_number(self.constant(uapi::UVERBS_ATTR_WRITE_CMD)?)?;
        let (command_size, response_size) = command.sizes();
        let length = |id| self.attr(id).map_or(0, |attr| usize::from(attr.len));
        if length(uapi::UVERBS_ATTR_CORE_IN) < command_size || length(uapi::UVERBS_ATTR_CORE_OUT) < response_size {
            return Err(Errno(libc::ENOSPC));
        }
        let response = self.required(uapi::UVERBS_ATTR_CORE_OUT)?;
        command.run(device, self.memory, response.data)?;
        self.mark_output(response)
    }

    fn query_gid_table(&self, device: &dyn Device) -> Result<(), Errno> {
        let invalid = Errno(libc::EINVAL);
        self.no_flags(uapi::UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)?;
        let entry_size = usize::try_from(self.constant(uapi::UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE)?);
        let entry_size = entry_size.ok().filter(|&size| size != 0).ok_or(invalid)?;
        let entries = self.required(uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES)?;
        let count = self.required(uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES)?;
        let room = usize::from(entries.len);
        if !room.is_multiple_of(entry_size) || room == 0 || usize::from(count.len) != size_of::<u64>() {
            return Err(invalid);
        }

        let table = device.gid_table();
        if table.len() > room / entry_size {
            return Err(invalid);
        }
        let mut bytes = Vec::with_capacity(table.len() * entry_size);
        for entry in &table {
            bytes.extend(entry_bytes(entry, entry_size));
        }
        self.answer(entries, &bytes)?;
        self.answer(count, &(table.len() as u64).to_ne_bytes())
    }

    fn query_gid_entry(&self, device: &dyn Device) -> Result<(), Errno> {
        let invalid = Errno(libc::EINVAL);
        self.no_flags(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS)?;
        let number = |id| u32::try_from(self.constant(id)?).map_err(|_| invalid);
        let port = number(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_PORT)?;
        let index = number(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX)?;
        let response = self.required(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY)?;
        if response.len == 0 {
            return Err(invalid);
        }
        let entry = device.gid(port, index)?;
        self.answer(response, &entry_bytes(&entry, usize::from(response.len)))
    }

    fn alloc_async_event(&self, device: &dyn Device) -> Result<(), Errno> {
        let handle = self.required(uapi::UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)?;
        let fd = device.alloc_async_fd()?;
        self.memory.write(handle.address + ATTR_DATA, &i64::from(fd.as_raw_fd()).to_ne_bytes())?;
        // It is libibverbs' from here on.
        let _: i32 = fd.into_raw_fd();
        Ok(())
    }
}

/// `struct ib_uverbs_gid_entry`, cut to or padded with zeros to what the caller thinks is its size.
fn entry_bytes(entry: &GidEntry, size: usize) -> Vec<u8> {
    let gid_type = match entry.gid_type {
        GidType::Ib => uapi::IB_UVERBS_GID_TYPE_IB,
        GidType::RoceV1 => uapi::IB_UVERBS_GID_TYPE_ROCE_V1,
        GidType::RoceV2 => uapi::IB_UVERBS_GID_TYPE_ROCE_V2,
    };
    let mut bytes = entry.gid.octets().to_vec();
    for field in [entry.index, entry.port, gid_type, entry.netdev_ifindex] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.resize(size, 0);
    bytes
}

const _: () = {
    use std::mem::offset_of;
    assert!(RDMA_VERBS_IOCTL == 0xC018_1B01);
    assert!(MANDATORY as u32 == uapi::UVERBS_ATTR_F_MANDATORY);
    assert!(VALID_OUTPUT as u32 == uapi::UVERBS_ATTR_F_VALID_OUTPUT);
    assert!(offset_of!(uapi::ib_uverbs_attr, flags) as u64 == ATTR_FLAGS);
    assert!(size_of::<uapi::ib_uverbs_gid_entry>() == 16 + 4 * 4);
    assert!(ATTR as u64 - ATTR_DATA == INLINE as u64);
};
