//! The receive ring of a packet socket.

use core::mem::{offset_of, size_of};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::os::fd::RawFd;

use super::frame::{Checksum, RawFrame};
use crate::sys::{set_option, set_struct};

/// Bytes of the ring, at least.
const RING: usize = 8 << 20;
/// Slots, at least: of an interface with large frames.
const LEAST_SLOTS: usize = 64;
/// Bytes that the kernel allocates together, at least.
const BLOCK: usize = 1 << 16;
/// Room in front of a frame, for the VLAN tag that the kernel has taken out.
const RESERVE: libc::c_int = 16;
/// Header of a slot and address of the frame, and their padding.
const SLOT_HEADER: usize = 96 + RESERVE.cast_unsigned() as usize;
/// Ethernet header and two VLAN tags.
const FRAME_HEADER: usize = 14 + 8;
const MACS: usize = 12;
const TAG: usize = 4;

const VLAN_TAG: u16 = 0x8100;
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>();

/// Slots that the kernel fills in order, and gets back in order.
#[derive(Debug)]
pub(super) struct Ring {
    memory: NonNull<u8>,
    length: usize,
    slot: usize,
    slots: usize,
    next: usize,
    /// Frames taken since the ring was last seen empty.
    run: usize,
    /// Frames have found no slot, or may have.
    pub(super) has_lost: bool,
}

// SAFETY: the mapping belongs to nobody else, and the kernel does not care who reads it.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes the ring of a packet socket, for frames of an interface with this MTU.
    pub(super) fn new(fd: RawFd, mtu: u32) -> io::Result<Self> {
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RESERVE, RESERVE)?;
        let slot = (SLOT_HEADER + FRAME_HEADER + mtu as usize).next_power_of_two();
        let block = slot.max(BLOCK);
        let blocks = (RING / block).max(LEAST_SLOTS * slot / block);
        let (length, slots) = (blocks * block, blocks * block / slot);
        let number = |number: usize| libc::c_uint::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
        let request = libc::tpacket_req {
            tp_block_size: number(block)?,
            tp_block_nr: number(blocks)?,
            tp_frame_size: number(slot)?,
            tp_frame_nr: number(slots)?,
        };
        set_struct(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping of the ring just made.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: our mapping. A forked child has no device, and would keep the ring.
        unsafe { libc::madvise(memory, length, libc::MADV_DONTFORK) };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, length, slot, slots, next: 0, run: 0, has_lost: false })
    }

    /// Returns the status word of a slot, which the kernel writes too.
    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, at a slot's start, which is aligned; both sides access it as one word.
        unsafe { AtomicU32::from_ptr(self.memory.add(slot * self.slot).cast().as_ptr()) }
    }

    /// Whether a frame is there.
    pub(super) fn has_frames(&self) -> bool {
        self.status(self.next).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// Hands frames to `each`, oldest first, up to `most`. Returns how many there were.
    pub(super) fn take(&mut self, most: usize, mut each: impl FnMut(RawFrame<'_>)) -> usize {
        let mut taken = 0;
        while taken < most {
            let status = self.status(self.next).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            self.has_lost |= status & libc::TP_STATUS_LOSING != 0;
            // SAFETY: the kernel does not touch a slot that it has given to us, and nobody else has the ring.
            let bytes =
                unsafe { core::slice::from_raw_parts_mut(self.memory.add(self.next * self.slot).as_ptr(), self.slot) };
            if let Some(frame) = frame(bytes, status) {
                each(frame);
            }
            self.status(self.next).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.slots;
            taken += 1;
        }
        self.run += taken;
        if !self.has_frames() {
            // The kernel tells of losses in the frame that comes after them, for which one may wait for ever. But it loses frames
            // only while every slot is taken, and then as many frames follow one another.
            self.has_lost |= self.run >= self.slots;
            self.run = 0;
        }
        taken
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody refers to any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}

/// Returns the frame in a slot, with its VLAN tag put back.
fn frame(slot: &mut [u8], status: u32) -> Option<RawFrame<'_>> {
    let long = |at: usize| Some(u32::from_ne_bytes(*slot.get(at..)?.first_chunk()?));
    let short = |at: usize| Some(u16::from_ne_bytes(*slot.get(at..)?.first_chunk()?));
    let (length, captured) =
        (long(offset_of!(libc::tpacket2_hdr, tp_len))?, long(offset_of!(libc::tpacket2_hdr, tp_snaplen))?);
    let mut start = usize::from(short(offset_of!(libc::tpacket2_hdr, tp_mac))?);
    let end = start.checked_add(captured as usize)?;
    let kind = *slot.get(ADDRESS_AT + offset_of!(libc::sockaddr_ll, sll_pkttype))?;
    if status & libc::TP_STATUS_VLAN_VALID != 0 && captured as usize >= MACS {
        let tci = short(offset_of!(libc::tpacket2_hdr, tp_vlan_tci))?;
        let tpid = short(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid))?;
        let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { VLAN_TAG };
        let moved = start.checked_sub(TAG)?;
        slot.get(start..start + MACS)?;
        slot.copy_within(start..start + MACS, moved);
        slot.get_mut(moved + MACS..moved + MACS + 2)?.copy_from_slice(&tpid.to_be_bytes());
        slot.get_mut(moved + MACS + 2..moved + MACS + 4)?.copy_from_slice(&tci.to_be_bytes());
        start = moved;
    }
    let checksum = if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
        Checksum::Partial
    } else if status & libc::TP_STATUS_CSUM_VALID != 0 {
        Checksum::Valid
    } else {
        Checksum::Unknown
    };
    Some(RawFrame {
        bytes: slot.get_mut(start..end)?,
        is_cut: captured < length,
        is_sent: kind == libc::PACKET_OUTGOING,
        checksum,
    })
}
