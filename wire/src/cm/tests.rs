use proptest::prelude::*;

use super::*;
use crate::cm::ip::IpPair;

/// Every byte pattern is a message or is refused, and what was read once is written to what reads the same.
fn reads_the_same_again(attribute_id: u16, bytes: &[u8; MESSAGE_LEN]) -> Result<(), TestCaseError> {
    let Ok(message) = Message::parse(attribute_id, bytes) else { return Ok(()) };
    prop_assert_eq!(message.attribute_id(), attribute_id);
    let mut again = [0xA5; MESSAGE_LEN];
    message.emit(&mut again);
    prop_assert_eq!(Message::parse(attribute_id, &again), Ok(message));
    Ok(())
}

proptest! {
    //= spec/connections.md#cm-001
    //= type=test
    //# Any bytes MUST be taken for a management datagram or refused.
    #[test]
    fn any_bytes_are_a_message_or_refused(attribute_id in 0_u16..0x20, bytes: [[u8; 8]; MESSAGE_LEN / 8]) {
        let bytes: [u8; MESSAGE_LEN] = core::array::from_fn(|i| bytes[i / 8][i % 8]);
        reads_the_same_again(attribute_id, &bytes)?;
    }

    #[test]
    fn any_payload_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMad::parse(&bytes);
    }

    #[test]
    fn any_ip_header_is_parsed_or_refused(bytes: [[u8; 6]; 6], version in 0_u8..16) {
        let mut bytes: [u8; IpHeader::LEN] = core::array::from_fn(|i| bytes[i / 6][i % 6]);
        bytes[0] &= 0x0F;
        bytes[1] = version << 4;
        let header = IpHeader::parse(&bytes);
        prop_assert_eq!(header.is_some(), version == 4 || version == 6);
        if let Some(header) = header {
            let mut again = [0xA5; IpHeader::LEN];
            header.emit(&mut again);
            prop_assert_eq!(IpHeader::parse(&again), Some(header));
        }
    }
}

#[test]
fn attribute_ids_are_the_tables() {
    for attribute_id in 0x10..=0x1A_u16 {
        let mut zero = [0; MESSAGE_LEN];
        // A path MTU of 0 does not exist.
        zero[50] = 1 << 4;
        assert_eq!(Message::parse(attribute_id, &zero).unwrap().attribute_id(), attribute_id);
    }
    assert_eq!(Message::parse(0x1B, &[0; MESSAGE_LEN]), Err(MalformedCm::Attribute(0x1B)));
}

#[test]
fn reserved_values_are_refused() {
    let mut req = [0; MESSAGE_LEN];
    assert_eq!(Message::parse(0x10, &req), Err(MalformedCm::Field), "no path MTU");
    req[50] = 5 << 4;
    assert!(Message::parse(0x10, &req).is_ok());
    req[43] = 3 << 1;
    assert_eq!(Message::parse(0x10, &req), Err(MalformedCm::Field), "extended transport, but none");
    let mut rej = [0; MESSAGE_LEN];
    rej[8] = 3 << 6;
    assert_eq!(Message::parse(0x12, &rej), Err(MalformedCm::Field));
}

#[test]
fn service_ids() {
    let id = ServiceId::new(ServiceId::TCP, 7174);
    assert_eq!(id.0, 0x0000_0000_0106_1C06);
    assert_eq!(id.parts(), Some((ServiceId::TCP, 7174)));
    assert_eq!(ServiceId(1 << 32).parts(), None);
}

#[test]
fn addresses_are_of_one_version() {
    let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap());
    assert_eq!(IpPair::new(v4, v6), None);
    let pair = IpPair::new(v4, v4).unwrap();
    assert_eq!((pair.src(), pair.dst()), (v4, v4));
}
