//! Netlink messages and their attributes (`<linux/netlink.h>`; netlink(7)): reading what somebody sends, writing answers.

/// Size of `struct nlmsghdr`, and of `struct nlattr`.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Messages and attributes begin at multiples of this.
const ALIGN: usize = 4;

/// Bits of an attribute's type that are none of its number: `NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = !(1 << 15 | 1 << 14);

/// The first number of a message that is not netlink's own (`NLMSG_MIN_TYPE`).
pub(super) const MIN_TYPE: u16 = 16;

/// Whether all flags of `NLM_F_DUMP` are set.
const DUMP: u16 = 0x300;

/// A message as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) kind: u16,
    flags: u16,
    pub(super) sequence: u32,
    /// Header and all.
    whole: &'a [u8],
}

/// The messages in a datagram. Like the kernel (`rdma_nl_rcv_skb`), stops at the first that is shorter than its header,
/// or longer than what is left.
pub(super) fn requests(datagram: &[u8]) -> impl Iterator<Item = Request<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let whole = rest.get(..length).filter(|_| length >= HEADER)?;
        rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Request { kind: u16_at(whole, 4)?, flags: u16_at(whole, 6)?, sequence: u32_at(whole, 8)?, whole })
    })
}

impl<'a> Request<'a> {
    /// Whether the message is a request (`NLM_F_REQUEST`).
    pub(super) const fn is_request(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the sender wants an acknowledgement (`NLM_F_ACK`).
    pub(super) const fn wants_ack(&self) -> bool {
        self.flags & 4 != 0
    }

    /// Whether the request asks for a dump.
    pub(super) const fn is_dump(&self) -> bool {
        self.flags & DUMP == DUMP
    }

    /// Parses the attributes. `None` if what follows the header is no list of attributes.
    pub(super) fn attributes(&self) -> Option<Attributes<'a>> {
        let mut rest = self.whole.get(HEADER..)?;
        let mut all = Vec::new();
        // As the kernel: what is too short for an attribute at the end does not matter (`nla_for_each_attr`).
        while rest.len() >= ATTRIBUTE {
            let (length, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
            let value = rest.get(ATTRIBUTE..length)?;
            all.push((kind & TYPE_MASK, value));
            rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        Some(Attributes(all))
    }
}

/// Attributes of a request. Of several with one number the last counts.
#[derive(Debug, Clone)]
pub(super) struct Attributes<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Attributes<'a> {
    fn get(&self, number: u32) -> Option<&'a [u8]> {
        self.0.iter().rev().find(|(kind, _)| u32::from(*kind) == number).map(|(_, value)| *value)
    }

    /// A number. `Err` for a value that is too short for one.
    pub(super) fn u32(&self, number: u32) -> Result<Option<u32>, Malformed> {
        self.get(number).map(|value| u32_at(value, 0).ok_or(Malformed)).transpose()
    }

    /// A text, which ends with NUL.
    pub(super) fn text(&self, number: u32) -> Result<Option<&'a str>, Malformed> {
        let text = |value: &'a [u8]| std::ffi::CStr::from_bytes_until_nul(value).ok()?.to_str().ok();
        self.get(number).map(|value| text(value).ok_or(Malformed)).transpose()
    }
}

/// An attribute is not what its number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Attributes as they are written, one after another.
#[derive(Debug, Default, Clone)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn put(&mut self, number: u32, value: &[u8]) {
        let (Ok(kind), Ok(length)) = (u16::try_from(number), u16::try_from(ATTRIBUTE + value.len())) else { return };
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
    }

    pub(super) fn put_u8(&mut self, number: u32, value: u8) {
        self.put(number, &[value]);
    }

    pub(super) fn put_u32(&mut self, number: u32, value: u32) {
        self.put(number, &value.to_ne_bytes());
    }

    pub(super) fn put_u64(&mut self, number: u32, value: u64) {
        self.put(number, &value.to_ne_bytes());
    }

    pub(super) fn put_text(&mut self, number: u32, text: &str) {
        self.put(number, &[text.as_bytes(), &[0]].concat());
    }

    /// Attributes inside an attribute.
    pub(super) fn nest(&mut self, number: u32, inside: &Self) {
        self.put(number, &inside.0);
    }

    /// Appends the attributes of another writer.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}

/// Writes the messages that answer a request: each is a datagram.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    request: Request<'a>,
    port: u32,
    datagrams: Vec<Vec<u8>>,
}

/// Numbers and flags of netlink's own messages: `NLMSG_ERROR`, `NLMSG_DONE`, `NLM_F_MULTI`, `NLM_F_CAPPED`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const MULTI: u16 = 2;
const CAPPED: u16 = 0x100;

impl<'a> Answer<'a> {
    /// Empty answer. `port` is that of the socket that asks.
    pub(super) const fn new(request: Request<'a>, port: u32) -> Self {
        Self { request, port, datagrams: Vec::new() }
    }

    /// A message of the request's number; one of several if all were asked for.
    pub(super) fn push(&mut self, attributes: &Writer) {
        let flags = if self.request.is_dump() { MULTI } else { 0 };
        self.write(self.request.kind, flags, &attributes.0);
    }

    /// The last one of several.
    pub(super) fn done(&mut self) {
        self.write(DONE, MULTI, &0_i32.to_ne_bytes());
    }

    /// Writes the outcome: 0, or what is wrong with the request.
    pub(super) fn acknowledge(&mut self, errno: i32) {
        let whole = self.request.whole;
        // In case of success, and only then, without what followed the header.
        let (flags, original) = if errno == 0 { (CAPPED, whole.get(..HEADER).unwrap_or_default()) } else { (0, whole) };
        self.write(ERROR, flags, &[&(-errno).to_ne_bytes(), original].concat());
    }

    fn write(&mut self, kind: u16, flags: u16, payload: &[u8]) {
        let Ok(length) = u32::try_from(HEADER + payload.len()) else { return };
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.request.sequence.to_ne_bytes());
        bytes.extend(self.port.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        self.datagrams.push(bytes);
    }

    pub(super) fn into_datagrams(self) -> Vec<Vec<u8>> {
        self.datagrams
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// A message to be sent: for tests.
#[cfg(test)]
pub(super) fn message(kind: u16, flags: u16, attributes: &Writer) -> Vec<u8> {
    let length = u32::try_from(HEADER + attributes.0.len()).unwrap();
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[7, 0, 0, 0], &[0; 4]];
    [&header.concat()[..], &attributes.0].concat()
}

/// Contents of a datagram of an answer: number, flags, and the attributes or the error. For tests.
#[cfg(test)]
pub(super) fn read(datagram: &[u8]) -> (u16, u16, Request<'_>) {
    let request = requests(datagram).next().unwrap();
    (request.kind, request.flags, request)
}

#[cfg(test)]
impl<'a> Request<'a> {
    /// The error of an acknowledgement.
    pub(super) fn error(&self) -> i32 {
        -u32_at(self.whole, HEADER).unwrap().cast_signed()
    }
}

#[cfg(test)]
impl<'a> Attributes<'a> {
    /// The value of each attribute of this number.
    pub(super) fn all(&self, number: u32) -> Vec<&'a [u8]> {
        self.0.iter().filter(|(kind, _)| u32::from(*kind) == number).map(|(_, value)| *value).collect()
    }

    /// The attributes in a value.
    pub(super) fn inside(value: &[u8]) -> Attributes<'_> {
        let mut rest = value;
        let mut all = Vec::new();
        while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            all.push((kind, &rest[ATTRIBUTE..usize::from(length)]));
            rest = rest.get(usize::from(length).next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        Attributes(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_one_after_another() {
        let mut attributes = Writer::default();
        attributes.put_u32(1, 5);
        attributes.put_text(2, "urxe0");
        let bytes = [message(0x1401, 5, &attributes), message(0x1402, 0x301, &Writer::default())].concat();
        let found: Vec<_> = requests(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].is_request() && found[0].wants_ack() && !found[0].is_dump() && found[1].is_dump());
        let attributes = found[0].attributes().unwrap();
        assert_eq!((attributes.u32(1), attributes.text(2)), (Ok(Some(5)), Ok(Some("urxe0"))));
        assert_eq!((attributes.u32(3), attributes.text(1)), (Ok(None), Ok(Some("\u{5}"))));
        assert_eq!(attributes.u32(2), Ok(Some(u32::from_ne_bytes(*b"urxe"))));
    }

    #[test]
    fn truncated_messages_are_refused() {
        let mut attributes = Writer::default();
        attributes.put_u32(1, 5);
        let whole = message(0x1401, 1, &attributes);
        for length in 0..whole.len() {
            assert_eq!(requests(&whole[..length]).count(), 0, "{length}");
        }
        // A message that says it is shorter than a header, one that says it is longer than all, an attribute likewise.
        for (at, value) in [(0, 15_u8), (0, 200), (16, 3), (16, 200)] {
            let mut bad = whole.clone();
            bad[at] = value;
            let attributes = requests(&bad).next().and_then(|request| request.attributes());
            assert!(attributes.is_none(), "{at} {value}");
        }
        let short = message(0x1401, 1, &{
            let mut short = Writer::default();
            short.put(1, &[1, 2]);
            short.put(2, b"no end");
            short
        });
        let attributes = requests(&short).next().unwrap().attributes().unwrap();
        assert_eq!((attributes.u32(1), attributes.text(2)), (Err(Malformed), Err(Malformed)));
    }

    #[test]
    fn any_bytes_at_all() {
        let mut rng = urxe_engine::rng::Rng::new(20);
        for _ in 0..20_000 {
            let length = usize::try_from(rng.next_u64() % 80).unwrap();
            let mut bytes: Vec<u8> = (0..length).map(|_| rng.next_u64().to_ne_bytes()[0]).collect();
            // Mostly lengths that are possible.
            if let (Some(first), true) = (bytes.first_chunk_mut::<4>(), !rng.next_u64().is_multiple_of(4)) {
                *first = (u32::try_from(length).unwrap()).to_ne_bytes();
            }
            for request in requests(&bytes) {
                let _ = request.attributes();
            }
        }
    }
}
