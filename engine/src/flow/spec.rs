//! Flow specifications, as `struct ibv_flow_spec_*` has them in memory: read by a table of fields.

use alloc::vec::Vec;

use super::frame::{Header, Headers};

/// Why a list of specifications is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// A specification is shorter than its type (EINVAL).
    #[error("a specification is shorter than its type")]
    Truncated,
    /// No specification has this type (EINVAL).
    #[error("no specification has type {0:#x}")]
    UnknownType(u32),
    /// The device does not match this, or not inside tunnels (EOPNOTSUPP).
    #[error("specifications of type {0:#x} are not supported")]
    Unsupported(u32),
    /// A mask covers a field that the device does not match (EOPNOTSUPP).
    #[error("a mask of type {0:#x} covers a field that is not matched")]
    UnsupportedField(u32),
    /// An action is given twice, or two that exclude one another (EINVAL).
    #[error("actions contradict one another")]
    Actions,
}

/// `IBV_FLOW_SPEC_INNER`.
const INNER: u32 = 0x100;
const IPV6: u32 = 0x31;
const ESP: u32 = 0x34;
const MPLS: u32 = 0x60;
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
const ACTION_HANDLE: u32 = 0x1002;
const ACTION_COUNT: u32 = 0x1003;
/// Bytes of a specification's type and size, which come first.
pub const SPEC_HEADER: usize = 6;

/// `struct ibv_flow_spec_*` of one type: two filters of `length` bytes, value and mask, from `start` on.
struct Layout {
    kind: u32,
    start: usize,
    length: usize,
    /// Header that the frame must have.
    header: Header,
    fields: &'static [Field],
}

/// A field of a filter, and its place in a frame.
struct Field {
    at: usize,
    length: usize,
    header: Header,
    offset: usize,
    /// Bits by which the field is shifted left within four bytes; 0 for one that begins with a byte.
    shift: u32,
}

const fn field(at: usize, length: usize, header: Header, offset: usize) -> Field {
    Field { at, length, header, offset, shift: 0 }
}

const LAYOUTS: &[Layout] = &[
    Layout {
        kind: 0x20,
        start: 6,
        length: 16,
        header: Header::Ethernet,
        fields: &[
            field(0, 6, Header::Ethernet, 0),
            field(6, 6, Header::Ethernet, 6),
            field(12, 2, Header::EtherType, 0),
            field(14, 2, Header::VlanTci, 0),
        ],
    },
    Layout {
        kind: 0x30,
        start: 8,
        length: 8,
        header: Header::Ipv4,
        fields: &[field(0, 4, Header::Ipv4, 12), field(4, 4, Header::Ipv4, 16)],
    },
    // Its flags (`enum ib_ipv4_flags` of the kernel) are not numbered as in the header; mlx5 does not match them either.
    Layout {
        kind: 0x32,
        start: 8,
        length: 12,
        header: Header::Ipv4,
        fields: &[
            field(0, 4, Header::Ipv4, 12),
            field(4, 4, Header::Ipv4, 16),
            field(8, 1, Header::Ipv4, 9),
            field(9, 1, Header::Ipv4, 1),
            field(10, 1, Header::Ipv4, 8),
        ],
    },
    Layout {
        kind: IPV6,
        start: 8,
        length: 40,
        header: Header::Ipv6,
        fields: &[
            field(0, 16, Header::Ipv6, 8),
            field(16, 16, Header::Ipv6, 24),
            field(33, 3, Header::Ipv6, 1),
            field(36, 1, Header::Ipv6, 6),
            Field { at: 37, length: 1, header: Header::Ipv6, offset: 0, shift: 20 },
            field(38, 1, Header::Ipv6, 7),
        ],
    },
    Layout {
        kind: 0x40,
        start: 6,
        length: 4,
        header: Header::Tcp,
        fields: &[field(0, 2, Header::Tcp, 2), field(2, 2, Header::Tcp, 0)],
    },
    Layout {
        kind: 0x41,
        start: 6,
        length: 4,
        header: Header::Udp,
        fields: &[field(0, 2, Header::Udp, 2), field(2, 2, Header::Udp, 0)],
    },
    // The VNI is the low 24 bits.
    Layout { kind: 0x50, start: 8, length: 4, header: Header::Vxlan, fields: &[field(1, 3, Header::Vxlan, 4)] },
    Layout {
        kind: 0x51,
        start: 8,
        length: 8,
        header: Header::Gre,
        fields: &[field(0, 2, Header::Gre, 0), field(2, 2, Header::Gre, 2), field(4, 4, Header::GreKey, 0)],
    },
];

/// Bytes of a header that must have a value under a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Criterion {
    pub(super) header: Header,
    pub(super) is_inner: bool,
    pub(super) offset: usize,
    /// Values, which are zero where the mask is, and masks.
    pub(super) bytes: Vec<(u8, u8)>,
}

impl Criterion {
    fn is_met(&self, headers: &Headers<'_>) -> bool {
        let header = headers.at(self.header, self.is_inner);
        let bytes = header.and_then(|header| header.get(self.offset..)?.get(..self.bytes.len()));
        bytes.is_some_and(|bytes| bytes.iter().zip(&self.bytes).all(|(byte, (value, mask))| byte & mask == *value))
    }
}

/// Condition on frames: headers that must be there, and their fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    pub(super) needs: Vec<(Header, bool)>,
    pub(super) criteria: Vec<Criterion>,
}

/// Actions of a rule, besides the delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Actions {
    /// `IBV_FLOW_SPEC_ACTION_TAG`: number that completions carry.
    pub tag: Option<u32>,
    /// `IBV_FLOW_SPEC_ACTION_DROP`: the frame goes nowhere.
    pub drop: bool,
    /// `IBV_FLOW_SPEC_ACTION_COUNT`: the application's pointer to the counters.
    pub counters: Option<u64>,
}

impl Match {
    /// Whether the frame meets the condition.
    #[must_use]
    pub fn is_met(&self, headers: &Headers<'_>) -> bool {
        self.needs.iter().all(|(header, is_inner)| headers.has(*header, *is_inner))
            && self.criteria.iter().all(|criterion| criterion.is_met(headers))
    }

    /// Whether every frame meets the condition.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.needs.is_empty()
    }

    /// Returns the headers that a frame must have, each once.
    pub(super) fn headers(&self) -> impl Iterator<Item = (Header, bool)> {
        let named = || self.needs.iter().copied().chain(self.criteria.iter().map(|of| (of.header, of.is_inner)));
        named()
            .enumerate()
            .filter(move |(at, header)| named().take(*at).all(|other| other != *header))
            .map(|(_, of)| of)
    }

    /// Returns value and mask of the destination's MAC address.
    #[must_use]
    pub fn destination(&self) -> ([u8; 6], [u8; 6]) {
        let (mut value, mut mask) = ([0; 6], [0; 6]);
        let is_destination = |criterion: &&Criterion| {
            criterion.header == Header::Ethernet && !criterion.is_inner && criterion.offset == 0
        };
        for criterion in self.criteria.iter().filter(is_destination) {
            for ((value, mask), (wanted, under)) in value.iter_mut().zip(&mut mask).zip(&criterion.bytes) {
                (*value, *mask) = (*value | wanted, *mask | under);
            }
        }
        (value, mask)
    }
}

/// Reads the specifications that follow `struct ibv_flow_attr`: `count` of them, each as long as it says.
///
/// # Errors
/// [`SpecError`].
pub fn parse(mut bytes: &[u8], count: u8) -> Result<(Match, Actions), SpecError> {
    let (mut wanted, mut actions) = (Match::default(), Actions::default());
    for _ in 0..count {
        let (kind, size) = header(bytes).ok_or(SpecError::Truncated)?;
        let spec = bytes.get(..size).filter(|spec| spec.len() >= SPEC_HEADER).ok_or(SpecError::Truncated)?;
        bytes = bytes.get(size..).unwrap_or_default();
        if matches!(kind & !0xff, 0 | INNER) {
            wanted.add(kind, spec)?;
        } else {
            actions.add(kind, spec)?;
        }
    }
    if actions.drop && actions.tag.is_some() {
        return Err(SpecError::Actions);
    }
    Ok((wanted, actions))
}

/// Returns type and size of the specification that `bytes` begin with.
#[must_use]
pub fn header(bytes: &[u8]) -> Option<(u32, usize)> {
    let (kind, rest) = bytes.split_first_chunk()?;
    let (size, _) = rest.split_first_chunk()?;
    Some((u32::from_ne_bytes(*kind), u16::from_ne_bytes(*size).into()))
}

impl Match {
    fn add(&mut self, kind: u32, spec: &[u8]) -> Result<(), SpecError> {
        let (is_inner, outer_kind) = (kind & INNER != 0, kind & !INNER);
        let layout = match LAYOUTS.iter().find(|layout| layout.kind == outer_kind) {
            // Tunnels are not looked for inside of tunnels.
            Some(Layout { header: Header::Vxlan | Header::Gre, .. }) if is_inner => {
                return Err(SpecError::Unsupported(kind));
            }
            Some(layout) => layout,
            None if [ESP, MPLS].contains(&outer_kind) => return Err(SpecError::Unsupported(kind)),
            None => return Err(SpecError::UnknownType(kind)),
        };
        let filters = spec.get(layout.start..layout.start + 2 * layout.length).ok_or(SpecError::Truncated)?;
        let (value, mask) = filters.split_at(layout.length);
        let covers = |at: usize| layout.fields.iter().any(|field| (field.at..field.at + field.length).contains(&at));
        // The padding at the end of a filter means nothing, nor do the upper bits of a VNI.
        let is_meant = |at: usize| match outer_kind {
            IPV6 => at < 39,
            0x50 => at > 0,
            _ => true,
        };
        if mask.iter().enumerate().any(|(at, byte)| *byte != 0 && is_meant(at) && !covers(at)) {
            return Err(SpecError::UnsupportedField(kind));
        }
        if !self.needs.contains(&(layout.header, is_inner)) {
            self.needs.push((layout.header, is_inner));
        }
        self.criteria.extend(layout.fields.iter().filter_map(|field| field.criterion(value, mask, is_inner)));
        Ok(())
    }
}

impl Field {
    /// Returns the criterion of this field; none where the mask is zero.
    fn criterion(&self, value: &[u8], mask: &[u8], is_inner: bool) -> Option<Criterion> {
        let range = self.at..self.at + self.length;
        let (value, mask) = (value.get(range.clone())?, mask.get(range)?);
        if mask.iter().all(|byte| *byte == 0) {
            return None;
        }
        let bytes = if self.shift == 0 {
            value.iter().zip(mask).map(|(value, mask)| (value & mask, *mask)).collect()
        } else {
            let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            let wide = |bytes: &[u8]| (number(bytes) << self.shift).to_be_bytes();
            wide(value).into_iter().zip(wide(mask)).map(|(value, mask)| (value & mask, mask)).collect()
        };
        Some(Criterion { header: self.header, is_inner, offset: self.offset, bytes })
    }
}

impl Actions {
    fn add(&mut self, kind: u32, spec: &[u8]) -> Result<(), SpecError> {
        let is_new = match kind {
            ACTION_TAG => {
                let tag = spec.get(8..12).and_then(|tag| tag.try_into().ok()).ok_or(SpecError::Truncated)?;
                self.tag.replace(u32::from_ne_bytes(tag)).is_none()
            }
            ACTION_DROP => !core::mem::replace(&mut self.drop, true),
            ACTION_COUNT => {
                let pointer = spec.get(8..16).and_then(|pointer| pointer.try_into().ok());
                self.counters.replace(u64::from_ne_bytes(pointer.ok_or(SpecError::Truncated)?)).is_none()
            }
            ACTION_HANDLE => return Err(SpecError::Unsupported(kind)),
            _ => return Err(SpecError::UnknownType(kind)),
        };
        if is_new { Ok(()) } else { Err(SpecError::Actions) }
    }
}
