//! Headers of an Ethernet frame, found by one pass from the front.

/// A header that flow specifications name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the protocols'")]
pub enum Header {
    /// MAC addresses.
    Ethernet,
    /// Tag control information of the first VLAN tag.
    VlanTci,
    /// Ethertype behind the VLAN tags.
    EtherType,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Vxlan,
    Gre,
    /// Key of a GRE header that has one.
    GreKey,
}

const HEADERS: usize = 10;

/// Length of the two MAC addresses.
const MACS: usize = 12;
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Ethernet inside of GRE.
pub(super) const ETHERTYPE_TEB: u16 = 0x6558;
/// 802.1Q and 802.1ad.
pub(super) const VLAN_TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Tags that are looked behind; cards look behind two.
pub(super) const MOST_TAGS: usize = 2;
/// UDP port of VXLAN (RFC 7348).
pub(super) const VXLAN_PORT: u16 = 4789;
pub(super) const IPPROTO_TCP: u8 = 6;
pub(super) const IPPROTO_UDP: u8 = 17;
pub(super) const IPPROTO_GRE: u8 = 47;
/// Hop-by-hop options, routing, destination options (RFC 8200): a next header and a length in units of 8 bytes.
pub(super) const EXTENSIONS: [u8; 3] = [0, 43, 60];
pub(super) const FRAGMENT: u8 = 44;
pub(super) const MOST_EXTENSIONS: usize = 8;

/// Offsets of the headers of a frame, and of the frame inside its tunnel.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    frame: &'a [u8],
    outer: Offsets,
    inner: Option<Offsets>,
}

/// Offsets by [`Header`]; a header is there with all of its fixed part.
#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    at: [Option<u32>; HEADERS],
    /// Start of the frame inside a VXLAN or GRE tunnel.
    payload: Option<usize>,
    /// Ethertype of that payload, where it is no Ethernet frame.
    payload_type: Option<u16>,
    /// The packet is the first of several fragments.
    is_first_fragment: bool,
}

impl<'a> Headers<'a> {
    /// Finds the headers of a frame without FCS. Headers that are cut off are not there.
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Self {
        let outer = Offsets::ethernet(frame, 0);
        let inner = outer.payload.map(|at| match outer.payload_type {
            None => Offsets::ethernet(frame, at),
            Some(kind) => {
                let mut offsets = Offsets::default();
                offsets.network(frame, at, kind);
                offsets
            }
        });
        Self { frame, outer, inner }
    }

    /// The frame.
    #[must_use]
    pub const fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// Bytes from the start of a header to the end of the frame; of the frame inside the tunnel if `is_inner`.
    #[must_use]
    pub fn at(&self, header: Header, is_inner: bool) -> Option<&'a [u8]> {
        self.frame.get(self.offset(header, is_inner)?..)
    }

    /// Offset of a header; of the frame inside the tunnel if `is_inner`.
    #[must_use]
    pub fn offset(&self, header: Header, is_inner: bool) -> Option<usize> {
        if is_inner { self.inner.as_ref()?.get(header) } else { self.outer.get(header) }
    }

    /// Whether the IP packet is the first of several fragments: the bytes behind its transport header are not all here.
    #[must_use]
    pub fn is_first_fragment(&self, is_inner: bool) -> bool {
        let offsets = if is_inner { self.inner.as_ref() } else { Some(&self.outer) };
        offsets.is_some_and(|offsets| offsets.is_first_fragment)
    }

    /// Whether the frame has the header.
    #[must_use]
    pub fn has(&self, header: Header, is_inner: bool) -> bool {
        self.at(header, is_inner).is_some()
    }
}

impl Offsets {
    fn get(&self, header: Header) -> Option<usize> {
        self.at.get(header as usize).copied().flatten().map(|at| at as usize)
    }

    /// Notes a header, if all of its `length` bytes are there.
    fn set(&mut self, frame: &[u8], header: Header, at: usize, length: usize) -> bool {
        let is_whole = at.checked_add(length).is_some_and(|end| end <= frame.len());
        if let (true, Ok(offset), Some(place)) = (is_whole, u32::try_from(at), self.at.get_mut(header as usize)) {
            *place = Some(offset);
        }
        is_whole
    }

    fn ethernet(frame: &[u8], at: usize) -> Self {
        let mut found = Self::default();
        if !found.set(frame, Header::Ethernet, at, MACS + 2) {
            return found;
        }
        let mut type_at = at + MACS;
        for tag in 0..MOST_TAGS {
            let is_tag = word(frame, type_at).is_some_and(|kind| VLAN_TAGS.contains(&kind));
            if !is_tag || frame.len() < type_at + 6 {
                break;
            }
            if tag == 0 {
                found.set(frame, Header::VlanTci, type_at + 2, 2);
            }
            type_at += 4;
        }
        found.set(frame, Header::EtherType, type_at, 2);
        if let Some(kind) = word(frame, type_at) {
            found.network(frame, type_at + 2, kind);
        }
        found
    }

    fn network(&mut self, frame: &[u8], at: usize, kind: u16) {
        match kind {
            ETHERTYPE_IPV4 => self.ipv4(frame, at),
            ETHERTYPE_IPV6 => self.ipv6(frame, at),
            _ => {}
        }
    }

    fn ipv4(&mut self, frame: &[u8], at: usize) {
        let Some(header) = frame.get(at..).filter(|header| header.len() >= 20) else { return };
        let (version, length) = (header[0] >> 4, usize::from(header[0] & 0xf) * 4);
        if version != 4 || length < 20 || header.len() < length {
            return;
        }
        self.set(frame, Header::Ipv4, at, length);
        let fragment = word(header, 6).unwrap_or_default();
        if fragment & 0x1fff == 0 {
            self.is_first_fragment = fragment & 0x2000 != 0;
            self.transport(frame, at + length, header[9]);
        }
    }

    fn ipv6(&mut self, frame: &[u8], at: usize) {
        let Some(header) = frame.get(at..).filter(|header| header.len() >= 40 && header[0] >> 4 == 6) else { return };
        self.set(frame, Header::Ipv6, at, 40);
        let (mut next, mut offset) = (header[6], 40);
        for _ in 0..MOST_EXTENSIONS {
            let Some(extension) = header.get(offset..).filter(|rest| rest.len() >= 8) else { break };
            if EXTENSIONS.contains(&next) {
                offset += (usize::from(extension[1]) + 1) * 8;
            } else if next == FRAGMENT {
                let fragment = word(extension, 2).unwrap_or_default();
                if fragment & 0xfff8 != 0 {
                    return;
                }
                self.is_first_fragment = fragment & 1 != 0;
                offset += 8;
            } else {
                break;
            }
            next = extension[0];
        }
        self.transport(frame, at + offset, next);
    }

    fn transport(&mut self, frame: &[u8], at: usize, protocol: u8) {
        match protocol {
            IPPROTO_TCP => _ = self.set(frame, Header::Tcp, at, 20),
            IPPROTO_UDP => {
                let is_vxlan = self.set(frame, Header::Udp, at, 8) && word(frame, at + 2) == Some(VXLAN_PORT);
                if is_vxlan && self.set(frame, Header::Vxlan, at + 8, 8) {
                    self.payload = Some(at + 16);
                }
            }
            IPPROTO_GRE => self.gre(frame, at),
            _ => {}
        }
    }

    /// RFC 2784 and 2890: version 0 with an optional checksum, key and sequence number.
    fn gre(&mut self, frame: &[u8], at: usize) {
        let (Some(flags), Some(protocol)) = (word(frame, at), word(frame, at + 2)) else { return };
        self.set(frame, Header::Gre, at, 4);
        if flags & 7 != 0 {
            return;
        }
        let optional = |bit: u16| if flags & bit != 0 { 4 } else { 0 };
        let key_at = at + 4 + optional(0x8000);
        if flags & 0x2000 != 0 {
            self.set(frame, Header::GreKey, key_at, 4);
        }
        self.payload = Some(key_at + optional(0x2000) + optional(0x1000));
        self.payload_type = (protocol != ETHERTYPE_TEB).then_some(protocol);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
