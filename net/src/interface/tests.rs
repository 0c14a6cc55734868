use std::net::Ipv6Addr;

use super::*;

fn eth(mac: [u8; 6], addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    Interface::new("eth0".into(), 7, mac, 1500, addresses)
}

#[test]
fn path_mtu_is_the_largest_that_fits_with_all_headers() {
    for (mtu, path) in
        [(65536, 4096), (4176, 4096), (4175, 2048), (9000, 4096), (1500, 1024), (592, 512), (591, 256), (68, 256)]
    {
        assert_eq!(path_mtu(mtu), path, "netdev MTU {mtu}");
    }
}

#[test]
fn default_gid_is_the_modified_eui64() {
    // RFC 4291 appendix A's inversion, on the address of the kernel's capture VM.
    let interface = eth([0x52, 0x54, 0, 0x12, 0x34, 0x56], &["10.0.0.1:4791"]);
    assert_eq!(interface.gids()[0].ipv6(), "fe80::5054:ff:fe12:3456".parse::<Ipv6Addr>().unwrap());
    assert_eq!(interface.guid().to_string(), "5054:00ff:fe12:3456");
}

#[test]
fn gid_table_has_ipv4_at_index_1_and_no_gid_twice() {
    let own = "[fe80::5054:ff:fe12:3456%7]:4791";
    let interface = eth([0x52, 0x54, 0, 0x12, 0x34, 0x56], &["10.0.0.1:4791", own, "[2001:db8::1]:4791"]);
    let table: Vec<Ipv6Addr> = interface.gids().iter().map(|gid| gid.ipv6()).collect();
    let expected: [Ipv6Addr; 3] =
        ["fe80::5054:ff:fe12:3456", "::ffff:10.0.0.1", "2001:db8::1"].map(|a| a.parse().unwrap());
    assert_eq!(table, expected);
    assert_eq!(interface.resolve(&interface.gids()[0]), Some(own.parse().unwrap()));
}

#[test]
fn gids_keep_their_index() {
    let gid = |last| Gid::new([last; 16]);
    let table = succeed(&[gid(1), gid(2), gid(3), gid(4)], &[gid(1), gid(5), gid(4), gid(6), gid(7)]);
    assert_eq!(table, [gid(1), gid(5), gid(6), gid(4), gid(7)]);
    assert_eq!(
        succeed(&table, &[gid(1), gid(4)]),
        [gid(1), Gid::UNSPECIFIED, Gid::UNSPECIFIED, gid(4), Gid::UNSPECIFIED]
    );
    // Another hardware address; the new default GID was assigned before.
    assert_eq!(succeed(&[gid(1), gid(2), gid(3)], &[gid(3), gid(2)]), [gid(3), gid(2), Gid::UNSPECIFIED]);
    let interface = eth([0; 6], &["10.0.0.1:4791"]);
    assert_eq!(interface.gid_index(&Gid::UNSPECIFIED), None);
}

#[test]
fn restrictions() {
    let eth0 = || eth([0x52, 0x54, 0, 0x12, 0x34, 0x56], &["10.0.0.1:4791", "10.0.0.2:4791", "[2001:db8::1]:4791"]);
    let [one, two, three] = ["10.0.0.1", "10.0.0.2", "2001:db8::1"].map(|ip| Gid::from(ip.parse::<IpAddr>().unwrap()));
    let elsewhere = "10.9.9.9".parse().unwrap();
    let chosen = eth0().restricted(None, &["2001:db8::1".parse().unwrap(), elsewhere, "10.0.0.1".parse().unwrap()]);
    assert_eq!(chosen.gids()[1..], [three, one]);
    assert_eq!(eth0().restricted(None, &[]).gids()[1..], [one, two, three]);
    assert_eq!(eth0().restricted(Some(512), &[]).path_mtu(), 512);
    assert_eq!(eth0().restricted(Some(4096), &[]).path_mtu(), 1024);
}

#[test]
fn unassigned_default_gid_stands_for_the_first_address() {
    let interface = eth([0; 6], &["127.0.0.1:4791", "[::1]:4791"]);
    for (index, address) in [(0, "127.0.0.1:4791"), (1, "127.0.0.1:4791"), (2, "[::1]:4791")] {
        assert_eq!(interface.resolve(&interface.gids()[index]), Some(address.parse().unwrap()), "GID {index}");
    }
}

#[test]
fn link_local_peers_get_the_interface_as_scope() {
    let interface = eth([0; 6], &["10.0.0.1:4791"]);
    let resolve = |text: &str| interface.resolve(&Gid::from(text.parse::<IpAddr>().unwrap())).map(|a| a.to_string());
    assert_eq!(resolve("fe80::2").as_deref(), Some("[fe80::2%7]:4791"));
    assert_eq!(resolve("2001:db8::2").as_deref(), Some("[2001:db8::2]:4791"));
    assert_eq!(resolve("ff02::1").as_deref(), Some("[ff02::1%7]:4791"));
    assert_eq!(resolve("10.0.0.2").as_deref(), Some("10.0.0.2:4791"));
    assert_eq!(resolve("::"), None);
    assert_eq!(resolve("0.0.0.0"), None);
}

#[test]
fn link_local_peers_are_on_the_link_of_the_own_address() {
    // The addresses of two interfaces, 7 and 9.
    let interface = eth([0; 6], &["10.0.0.1:4791", "[fe80::7%7]:4791", "[fe80::9%9]:4791", "[2001:db8::1]:4791"]);
    let resolve = |text: &str, from: usize| {
        let gid = Gid::from(text.parse::<IpAddr>().unwrap());
        interface.resolve_peer(&gid, interface.addresses()[from]).map(|a| a.to_string())
    };
    assert_eq!(resolve("fe80::2", 1).as_deref(), Some("[fe80::2%7]:4791"));
    assert_eq!(resolve("fe80::2", 2).as_deref(), Some("[fe80::2%9]:4791"));
    assert_eq!(resolve("ff02::1", 2).as_deref(), Some("[ff02::1%9]:4791"));
    assert_eq!(resolve("2001:db8::2", 2).as_deref(), Some("[2001:db8::2]:4791"));
    assert_eq!(resolve("fe80::2", 3).as_deref(), Some("[fe80::2%7]:4791"), "no link is said");
    assert_eq!(resolve("fe80::7", 2).as_deref(), Some("[fe80::7%7]:4791"), "an own address");
    assert_eq!(resolve("10.0.0.2", 0).as_deref(), Some("10.0.0.2:4791"));
}

#[test]
fn the_loopback_interface_is_read() {
    let lo = Interface::by_name("lo").unwrap();
    assert_eq!(lo.addresses()[0], "127.0.0.1:4791".parse().unwrap());
    assert_eq!(lo.path_mtu(), path_mtu(lo.mtu()));
    assert!(lo.index() > 0);
}

#[test]
fn no_such_interface() {
    assert!(matches!(Interface::by_name("nonesuch0"), Err(PortError::NoSuchInterface { name }) if name == "nonesuch0"));
}
