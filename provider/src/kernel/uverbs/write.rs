//! Commands by write(2): `ib_uverbs_cmd_hdr`, the command, and an address to answer to.

use std::os::fd::{AsRawFd, IntoRawFd};

use urxe_ffi::uapi;

use super::Device;
use crate::kernel::Errno;
use crate::kernel::memory::{Fields, UserMemory};

/// Size of `ib_uverbs_cmd_hdr`.
const HEADER: usize = size_of::<uapi::ib_uverbs_cmd_hdr>();
/// Commands count lengths in words of 4 bytes.
const WORD: usize = 4;

/// Commands that we answer by write(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    CreateCompChannel,
}

impl Command {
    /// EOPNOTSUPP for what we do not have, as the kernel says for what it does not have.
    pub(super) fn from_number(number: u64) -> Result<Self, Errno> {
        if number == u64::from(uapi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
            Ok(Self::CreateCompChannel)
        } else {
            Err(Errno(libc::EOPNOTSUPP))
        }
    }

    /// Sizes, in bytes, of the command without the header and of the response.
    pub(super) const fn sizes(self) -> (usize, usize) {
        match self {
            Self::CreateCompChannel => (
                size_of::<uapi::ib_uverbs_create_comp_channel>(),
                size_of::<uapi::ib_uverbs_create_comp_channel_resp>(),
            ),
        }
    }

    /// Does it, and stores the response at `response`.
    pub(super) fn run(self, device: &dyn Device, memory: &dyn UserMemory, response: u64) -> Result<(), Errno> {
        match self {
            Self::CreateCompChannel => {
                let fd = device.create_comp_channel()?;
                memory.write(response, &fd.as_raw_fd().to_ne_bytes())?;
                // It is the application's from here on.
                let _: i32 = fd.into_raw_fd();
                Ok(())
            }
        }
    }
}

/// Executes the command in `buf`, which was written to a uverbs file. Returns the number of bytes taken: all.
///
/// The checks and their errnos are those of `verify_hdr` in the kernel's `uverbs_main.c`.
pub fn handle_write(device: &dyn Device, memory: &dyn UserMemory, buf: &[u8]) -> Result<usize, Errno> {
    let mut fields = Fields(buf);
    let (Some(command), Some(in_words), Some(out_words)) = (fields.u32(), fields.u16(), fields.u16()) else {
        return Err(Errno(libc::EINVAL));
    };
    let command = Command::from_number(u64::from(command))?;
    let (command_size, response_size) = command.sizes();
    if usize::from(in_words) * WORD != buf.len() {
        return Err(Errno(libc::EINVAL));
    }
    if buf.len() < HEADER + command_size || usize::from(out_words) * WORD < response_size {
        return Err(Errno(libc::ENOSPC));
    }
    let response = fields.u64().ok_or(Errno(libc::ENOSPC))?;
    command.run(device, memory, response)?;
    Ok(buf.len())
}
