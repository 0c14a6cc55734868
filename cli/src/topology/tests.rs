use super::*;

/// Two sockets, two switches each; behind each switch a GPU and two cards.
const TWO_SOCKETS: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000ffff,0000000f" arch="x86_64">
    <pci busid="0000:07:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0a:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"/>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020000" vendor="0x15b3" device="0x1021" link_speed="8 GT/s" link_width="8">
        <nic><net name="mlx5_1" dev="0" speed="200000" port="1"/></nic>
      </pci>
      <pci busid="0000:0c:00.1" class="0x020000"><nic/></pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:87:00.0" class="0x060400"><pci busid="0000:8c:00.0" class="0x020700"/></pci>
    <pci busid="0001:87:00.0" class="0x020000"/>
  </cpu>
</system>"#;

fn functions(devices: &[&str]) -> Vec<(String, Option<usize>)> {
    let topology = Topology::parse(TWO_SOCKETS, devices).unwrap();
    topology.functions.iter().map(|function| (function.folder().display().to_string(), function.device)).collect()
}

#[test]
fn ports_and_root_complexes_are_added() {
    let found = functions(&[]);
    let folders: Vec<&str> = found.iter().map(|(folder, _)| folder.as_str()).collect();
    let (first, second) = ("devices/pci7572:06/7572:06:01.0", "devices/pci7572:86/7572:86:01.0");
    let switch = format!("{first}/7572:07:00.0");
    assert_eq!(
        folders,
        [
            first,
            &switch,
            &format!("{switch}/7572:09:00.0"),
            &format!("{switch}/7572:09:00.0/7572:0a:00.0"),
            &format!("{switch}/7572:09:01.0"),
            &format!("{switch}/7572:09:01.0/7572:0c:00.0"),
            &format!("{switch}/7572:09:01.0/7572:0c:00.1"),
            second,
            &format!("{second}/7572:87:00.0"),
            &format!("{second}/7572:87:00.0/7572:8b:00.0"),
            &format!("{second}/7572:87:00.0/7572:8b:00.0/7572:8c:00.0"),
            "devices/pci7573:86/7573:86:01.0",
            "devices/pci7573:86/7573:86:01.0/7573:87:00.0",
        ]
    );
}

#[test]
fn buses_nest() {
    let topology = Topology::parse(TWO_SOCKETS, &[]).unwrap();
    for bridge in topology.functions.iter().filter(|function| function.buses.is_some()) {
        let buses = bridge.buses.unwrap();
        assert!(buses.primary < buses.secondary && buses.secondary <= buses.subordinate, "{bridge:?}");
        for other in topology.functions.iter().filter(|other| other.address.domain == bridge.address.domain) {
            let is_behind = other.behind.starts_with(bridge.folder());
            let is_in_range = (buses.secondary..=buses.subordinate).contains(&other.address.bus);
            assert_eq!(is_behind, is_in_range, "{other:?} and {bridge:?}");
        }
    }
}

#[test]
fn devices_by_name_and_then_in_order() {
    let of = |devices: &[&str]| -> Vec<String> {
        let found = functions(devices);
        let folder = |index| found.iter().find(|(_, device)| *device == Some(index)).unwrap().0.clone();
        (0..devices.len()).map(|index| folder(index).rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&["mlx5_0", "mlx5_1"]), ["7572:0c:00.1", "7572:0c:00.0"]);
    assert_eq!(of(&["a", "b", "c", "d"]), ["7572:0c:00.0", "7572:0c:00.1", "7572:8c:00.0", "7573:87:00.0"]);
    let five = Topology::parse(TWO_SOCKETS, &["a", "b", "c", "d", "e"]).unwrap_err().to_string();
    assert!(five.contains("4 network functions") && five.contains("none is left for e"), "{five}");
}

#[test]
fn a_device_has_one_function_and_a_function_one_device() {
    let parse = |first: &str, second: &str, devices: &[&str]| {
        let card = |at: &str, nets: &str| {
            let nets: String = nets.split(' ').map(|name| format!("\n<net name='{name}'/>")).collect();
            format!("<pci busid='0000:{at}:00.0' class='0x020000'><nic>{nets}</nic></pci>")
        };
        let text = format!("<system><cpu numaid='0'>{}{}</cpu></system>", card("0c", first), card("0d", second));
        Topology::parse(&text, devices)
    };
    let error = |first, second, devices: &[&str]| parse(first, second, devices).unwrap_err().to_string();
    assert_eq!(error("a", "a", &["a", "b"]), "line 3: a is at line 2 already, in another <pci>");
    assert_eq!(
        error("x a b", "y", &["a", "b"]),
        "line 4: b is a device of its own, and line 3 has a for the same <pci>"
    );
    let devices = |first, second, devices: &[&str]| {
        let found = parse(first, second, devices).unwrap().functions;
        found.iter().filter(|function| function.is_network()).map(|function| function.device).collect::<Vec<_>>()
    };
    // Ports of a card, and names that are none of a device's.
    assert_eq!(devices("b b", "a", &["a", "b"]), [Some(1), Some(0)]);
    assert_eq!(devices("x y", "x a", &["a"]), [None, Some(0)]);
}

#[test]
fn attributes() {
    let topology = Topology::parse(TWO_SOCKETS, &[]).unwrap();
    let card = topology.functions.iter().find(|function| function.address.to_string() == "7572:0c:00.0").unwrap();
    assert_eq!((card.link.speed_text(), card.link.width, card.class), ("8.0 GT/s PCIe", 8, 0x02_0000));
    assert_eq!(card.ids.map(|ids| (ids.vendor, ids.subsystem_device)), Some((0x15b3, 0x1021)));
    let cpus = Some(("0000ffff,0000000f".to_owned(), "0-3,32-47".to_owned()));
    assert_eq!(card.locality, Locality { numa_node: 0, cpus });
    let other = topology.functions.last().unwrap();
    assert_eq!((other.locality.numa_node, other.locality.cpus.clone(), other.link), (1, None, Link::DEFAULT));
}

#[test]
fn mistakes_are_told_with_their_line() {
    let card = |attributes: &str| format!("<system>\n<cpu numaid='0'>\n<pci {attributes}/>\n</cpu></system>");
    let switch = |at: &str, class: &str, below: &str| {
        format!(
            "<system><cpu numaid='0'>\n<pci busid='{at}' class='{class}'>\n<pci busid='{below}' class='0x020000'/>\n</pci></cpu></system>"
        )
    };
    let twice = "<pci busid='0000:0c:00.0' class='0x020000'/>\n";
    for (text, said) in [
        ("<system>\n<cpu></system>".to_owned(), "line 2: "),
        ("<topology/>".to_owned(), "line 1: <topology> where <system> is expected"),
        ("<system/>".to_owned(), "no <cpu>"),
        ("<system>\n<cpu/></system>".to_owned(), "line 2: <cpu> without numaid"),
        ("<system>\n<cpu numaid='x'/></system>".to_owned(), "line 2: numaid=\"x\" of <cpu>"),
        ("<system>\n<cpu numaid='0' affinity='xyz'/></system>".to_owned(), "line 2: affinity=\"xyz\""),
        (card("class='0x020000'"), "line 3: <pci> without busid"),
        (card("busid='0000:0c:00.0'"), "line 3: <pci> without class"),
        (card("busid='0c:00.0' class='0x020000'"), "line 3: busid=\"0c:00.0\" of <pci>: DOMAIN:BUS"),
        (card("busid='0000:0c:20.0' class='0x020000'"), "busid=\"0000:0c:20.0\""),
        (card("busid='0000:0c:00.0' class='network'"), "class=\"network\""),
        (
            card("busid='0000:0c:00.0' class='0x020000' link_speed='fast'"),
            "link_speed=\"fast\" of <pci>: one of 2.5 GT/s",
        ),
        (card("busid='0000:0c:00.0' class='0x020000' link_width='3'"), "link_width=\"3\""),
        (card("busid='0000:0c:00.0' class='0x020000' vendor='nvidia' device='0'"), "vendor=\"nvidia\""),
        (card("busid='0000:00:00.0' class='0x020000'"), "line 2: no bus number is left below 0000:00"),
        (
            switch("0000:07:00.0", "0x020000", "0000:09:00.0"),
            "line 2: <pci> within 0000:07:00.0, whose class 0x020000 is no bridge",
        ),
        (
            switch("0000:07:00.0", "0x060400", "0000:08:00.0"),
            "line 2: no bus number is left between the switch 0000:07:00.0 and 0000:08",
        ),
        (
            switch("0000:07:00.0", "0x060400", "0001:09:00.0"),
            "line 3: 0001:09:00.0 is behind 0000:07:00.0, which is of another",
        ),
        (switch("0000:09:00.0", "0x060400", "0000:07:00.0"), "line 2: no bus number is left between"),
        (format!("<system><cpu numaid='0'>{twice}{twice}</cpu></system>"), "line 2: another function at 0000:0c:00.0"),
    ] {
        let error = Topology::parse(&text, &[]).unwrap_err().to_string();
        assert!(error.contains(said), "{error:?} of {text}");
    }
    let deep = format!(
        "<system><cpu numaid='0'>{}{}</cpu></system>",
        "<pci busid='0000:01:00.0' class='0x060400'>".repeat(40),
        "</pci>".repeat(40)
    );
    assert!(Topology::parse(&deep, &[]).unwrap_err().to_string().contains("within 16 others"));
}
