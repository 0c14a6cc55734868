//! The receive ring of a packet socket.

use core::mem::{offset_of, size_of};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::os::fd::RawFd;

use super::frame::{Checksum, Missing, RawFrame, Segments};
use crate::sys::{set_option, set_struct};

/// Bytes of the ring, at least.
const RING: usize = 8 << 20;
/// Slots, at least: of an interface with large frames.
const LEAST_SLOTS: usize = 64;
/// Bytes that the kernel allocates together, at least.
const BLOCK: usize = 1 << 16;
/// Room in front of a frame: with that for the header of `PACKET_VNET_HDR`, packets of IP begin at a multiple of 16.
const RESERVE: libc::c_int = 22;
/// `struct virtio_net_hdr`, in front of a frame. A VLAN tag that the kernel has taken out is put over its end.
const VNET_HEADER: usize = 10;
/// Header of a slot and address of the frame, and their padding.
const SLOT_HEADER: usize = 80 + VNET_HEADER + RESERVE.cast_unsigned() as usize;
/// Longest frame that there is, with its header.
const LONGEST: usize = (1 << 16) + 64;
/// Ethernet header and two VLAN header.
const FRAME_HEADER: usize = 14 + 8;
const MACS: usize = 12;
const TAG: usize = 4;

const VLAN_TAG: u16 = 0x8100;
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>();

/// Kinds of segments (`gso_type` of `struct virtio_net_hdr`), and a bit that is none.
const GSO_TCP: [u8; 2] = [1, 4];
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

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
    /// The last frame that a slot was too short for, behind its header.
    long: Vec<u8>,
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
        Ok(Self { memory, length, slot, slots, next: 0, run: 0, has_lost: false, long: Vec::new() })
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

    /// Whether less than half of the slots have frames.
    pub(super) fn has_room(&self) -> bool {
        self.status((self.next + self.slots / 2) % self.slots).load(Ordering::Relaxed) & libc::TP_STATUS_USER == 0
    }

    /// Hands frames to `each`, oldest first, up to `most`. Those that a slot was too short for come by `take_long`, one a call.
    /// Returns how many there were.
    pub(super) fn take(
        &mut self,
        most: usize,
        mut take_long: impl FnMut(&mut [u8]) -> Option<usize>,
        mut each: impl FnMut(RawFrame<'_>),
    ) -> usize {
        let mut taken = 0;
        while taken < most {
            let status = self.status(self.next).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            self.has_lost |= status & libc::TP_STATUS_LOSING != 0;
            // SAFETY: the kernel does not touch a slot that it has given to us, and nobody else has the ring.
            let slot =
                unsafe { core::slice::from_raw_parts_mut(self.memory.add(self.next * self.slot).as_ptr(), self.slot) };
            if let Some(header) = SlotHeader::of(slot, status) {
                if status & libc::TP_STATUS_COPY != 0 {
                    self.long.resize(VNET_HEADER + LONGEST, 0);
                    let length = take_long(&mut self.long);
                    let missing = match length {
                        Some(length) if length > self.long.len() => Some(Missing::TooLong),
                        Some(_) => None,
                        None => Some(Missing::NoRoom),
                    };
                    let end = length.unwrap_or_default().min(self.long.len());
                    if let Some(frame) = header.frame(&mut self.long, VNET_HEADER, end.max(VNET_HEADER), missing) {
                        each(frame);
                    }
                } else {
                    let (start, captured) = (header.start, header.captured);
                    let missing = (captured < header.length).then_some(Missing::NoRoom);
                    if let Some(frame) = header.frame(slot, start, start + captured, missing) {
                        each(frame);
                    }
                }
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

/// The beginning of a slot, read.
#[derive(Clone, Copy, Debug)]
struct SlotHeader {
    start: usize,
    captured: usize,
    length: usize,
    is_sent: bool,
    /// Kind and number of the VLAN tag that the kernel has taken out.
    vlan: Option<(u16, u16)>,
    checksum: Checksum,
}

impl SlotHeader {
    fn of(slot: &[u8], status: u32) -> Option<Self> {
        let long = |at: usize| Some(u32::from_ne_bytes(*slot.get(at..)?.first_chunk()?));
        let short = |at: usize| Some(u16::from_ne_bytes(*slot.get(at..)?.first_chunk()?));
        let vlan = if status & libc::TP_STATUS_VLAN_VALID != 0 {
            let tpid = short(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid))?;
            let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { VLAN_TAG };
            Some((tpid, short(offset_of!(libc::tpacket2_hdr, tp_vlan_tci))?))
        } else {
            None
        };
        let checksum = if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            Checksum::Partial
        } else if status & libc::TP_STATUS_CSUM_VALID != 0 {
            Checksum::Valid
        } else {
            Checksum::Unknown
        };
        Some(Self {
            start: short(offset_of!(libc::tpacket2_hdr, tp_mac))?.into(),
            captured: long(offset_of!(libc::tpacket2_hdr, tp_snaplen))? as usize,
            length: long(offset_of!(libc::tpacket2_hdr, tp_len))? as usize,
            is_sent: *slot.get(ADDRESS_AT + offset_of!(libc::sockaddr_ll, sll_pkttype))? == libc::PACKET_OUTGOING,
            vlan,
            checksum,
        })
    }

    /// Returns the frame that lies between `start` and `end`, with its VLAN tag put back. Its header is in front of it.
    fn frame<'a>(
        &self,
        bytes: &'a mut [u8],
        mut start: usize,
        end: usize,
        missing: Option<Missing>,
    ) -> Option<RawFrame<'a>> {
        let segments = segments(bytes.get(start.checked_sub(VNET_HEADER)?..)?.first_chunk()?);
        bytes.get(start..end)?;
        if let Some((tpid, tci)) = self.vlan
            && end - start >= MACS
        {
            let moved = start - TAG;
            bytes.copy_within(start..start + MACS, moved);
            bytes.get_mut(moved + MACS..moved + MACS + 2)?.copy_from_slice(&tpid.to_be_bytes());
            bytes.get_mut(moved + MACS + 2..moved + MACS + 4)?.copy_from_slice(&tci.to_be_bytes());
            start = moved;
        }
        let bytes = bytes.get_mut(start..end)?;
        let (is_sent, checksum) = (self.is_sent, self.checksum);
        Some(RawFrame { bytes, missing, segments, is_sent, is_taken: false, checksum })
    }
}

/// Returns what a `struct virtio_net_hdr`, of this host's byte order, says of segments.
fn segments(header: &[u8; VNET_HEADER]) -> Option<Segments> {
    let [_, kind, _, _, low, high, ..] = *header;
    let (kind, size) = (kind & !GSO_ECN, u16::from_ne_bytes([low, high]));
    let is_tcp = GSO_TCP.contains(&kind);
    (size > 0 && (is_tcp || kind == GSO_UDP)).then_some(Segments { size, is_tcp })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_of_segments() {
        let header = |kind: u8, size: u16| {
            let [low, high] = size.to_ne_bytes();
            segments(&[1, kind, 54, 0, low, high, 34, 0, 16, 0])
        };
        for (kind, is_tcp) in [(1, true), (4, true), (0x81, true), (5, false)] {
            assert_eq!(header(kind, 1448), Some(Segments { size: 1448, is_tcp }));
            assert_eq!(header(kind, 0), None);
        }
        assert_eq!((header(0, 1448), header(3, 1448)), (None, None));
    }
}
