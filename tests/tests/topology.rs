//! `urxe run --topology`: programs find PCI functions where a file of NCCL's format says.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use roxmltree::{Document, Node};
use urxe_tests::{Finished, World, artifacts};

const CARDS: usize = 8;

/// Two sockets of two switches; behind each switch two GPUs and two cards, as in a machine for training.
fn file() -> String {
    let mut text = String::from("<system version=\"1\">\n");
    for (cpu, switches) in [(0, [0x07, 0x45]), (1, [0x88, 0xb7])] {
        let affinity = ["0000ffff", "ffff0000"][cpu];
        let _ =
            writeln!(text, "  <cpu numaid=\"{cpu}\" affinity=\"{affinity}\" arch=\"x86_64\" vendor=\"AuthenticAMD\">");
        for switch in switches {
            let link = "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"";
            let _ = writeln!(text, "    <pci busid=\"0000:{switch:02x}:00.0\" class=\"0x060400\" {link}>");
            for (behind, class, ids) in [
                (8, "0x030200", "vendor=\"0x10de\" device=\"0x20b2\""),
                (5, "0x020000", "vendor=\"0x15b3\" device=\"0x101b\""),
                (11, "0x030200", "vendor=\"0x10de\" device=\"0x20b2\""),
                (13, "0x020000", "vendor=\"0x15b3\" device=\"0x101b\""),
            ] {
                // The second card of each switch has half of the lanes.
                let link = if behind == 13 { "link_speed=\"16 GT/s\" link_width=\"8\"" } else { link };
                let busid = format!("0000:{:02x}:00.0", switch + behind);
                let _ = writeln!(text, "      <pci busid=\"{busid}\" class=\"{class}\" {ids} {link}/>");
            }
            text += "    </pci>\n";
        }
        text += "  </cpu>\n";
    }
    text + "</system>\n"
}

fn list(name: &str) -> String {
    (0..CARDS).map(|card| format!("{name}{card}")).collect::<Vec<_>>().join(",")
}

/// A world with the file, and an interface for each card.
fn world() -> Result<World> {
    let world = World::new()?;
    let script: String = (0..CARDS)
        .map(|card| {
            format!(
                "ip link add eth{card} type veth peer name far{card}; ip address add 10.91.{card}.1/24 dev eth{card}\n\
                 ip link set far{card} up; ip link set eth{card} up\n"
            )
        })
        .collect();
    world.host().run("sh", &["-ec", &script])?;
    fs::write(world.dir().join("topology.xml"), file())?;
    Ok(world)
}

fn try_run(world: &World, options: &[&str], program: &[&str]) -> Result<Finished> {
    let urxe = artifacts::urxe()?;
    let file = world.dir().join("topology.xml").display().to_string();
    let (netdevs, names) = (list("eth"), list("mlx5_"));
    let mut command = world.host().command(&urxe);
    command.args(["run", "--netdev", &netdevs, "--device-name", &names, "--topology", &file]).args(options);
    command.arg("--").args(program);
    world.host().start(command)?.finish(urxe_tests::TIMEOUT)
}

fn run(world: &World, program: &[&str]) -> Result<String> {
    Ok(try_run(world, &["--personality", "pci"], program)?.success()?.stdout)
}

/// Where a function hangs: the addresses above it that the file has, its class, its speed in GB/s times 100, its card.
#[derive(Debug, PartialEq, Eq, Default, Clone)]
struct Place {
    above: Vec<String>,
    class: String,
    speed: String,
    card: Option<String>,
}

fn speed(gigatransfers: f64, lanes: f64) -> String {
    format!("{:.0}", gigatransfers * lanes / 8.0 * 128.0 / 130.0 * 100.0)
}

/// By address, as the file has it.
fn places_of_file(
    node: Node<'_, '_>,
    above: &[String],
    cards: &mut usize,
    places: &mut BTreeMap<String, Place>,
) -> Result<()> {
    for pci in node.children().filter(|child| child.is_element()) {
        let mut above = above.to_vec();
        if pci.has_tag_name("pci") {
            let attribute = |name| pci.attribute(name).context("an attribute");
            let (busid, class) = (attribute("busid")?.to_owned(), attribute("class")?);
            let rate = attribute("link_speed")?.split_once(" GT/s").context("a speed")?.0.parse()?;
            let is_card = class.starts_with("0x02");
            let card = is_card.then(|| format!("mlx5_{cards}"));
            *cards += usize::from(is_card);
            let place = Place {
                above: above.clone(),
                class: class[2..6].to_owned(),
                speed: speed(rate, attribute("link_width")?.parse()?),
                card,
            };
            places.insert(busid.clone(), place);
            above.push(busid);
        }
        places_of_file(pci, &above, cards, places)?;
    }
    Ok(())
}

/// By address, as hwloc has found it.
fn places_of_hwloc(node: Node<'_, '_>, above: &[String], places: &mut BTreeMap<String, Place>) -> Result<()> {
    for object in node.children().filter(|child| child.has_tag_name("object")) {
        let mut above = above.to_vec();
        if let (Some(busid), Some(kind)) = (object.attribute("pci_busid"), object.attribute("pci_type")) {
            let Some(busid) = busid.strip_prefix("7572:").map(|rest| format!("0000:{rest}")) else { continue };
            let rate: f64 = object.attribute("pci_link_speed").context("a speed")?.parse()?;
            let card = object.children().find(|child| child.attribute("osdev_type") == Some("3"));
            let card = card.and_then(|card| card.attribute("name")).map(str::to_owned);
            let class = kind.get(..4).context("a class")?.to_owned();
            let place = Place { above: above.clone(), class, speed: format!("{:.0}", rate * 100.0), card };
            places.insert(busid.clone(), place);
            above.push(busid);
        }
        places_of_hwloc(object, &above, places)?;
    }
    Ok(())
}

#[test]
fn hwloc_finds_what_the_file_says() -> Result<()> {
    let world = world()?;
    let text = file();
    let document = Document::parse(&text)?;
    let mut wanted = BTreeMap::new();
    places_of_file(document.root_element(), &[], &mut 0, &mut wanted)?;
    ensure!(wanted.len() == 20 && wanted.values().filter(|place| place.card.is_some()).count() == CARDS, "{wanted:?}");
    let told = run(&world, &["lstopo-no-graphics", "--whole-io", "--of", "xml"])?;
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = Document::parse_with_options(&told, options)?;
    let mut found = BTreeMap::new();
    places_of_hwloc(document.root_element(), &[], &mut found)?;
    // A machine has ports that the file leaves out.
    found.retain(|busid, _| wanted.contains_key(busid));
    for place in found.values_mut() {
        place.above.retain(|busid| wanted.contains_key(busid));
    }
    ensure!(found == wanted, "{told}\n{found:#?}\nwanted\n{wanted:#?}");
    Ok(())
}

/// NCCL's way through sysfs: from a function two folders up to the upstream port of its switch, to the root complex in the end.
#[test]
fn sysfs_has_switches_and_root_complexes() -> Result<()> {
    let world = world()?;
    let script = "for card in 0 3 7; do
            cd -P /sys/class/infiniband/mlx5_$card/device
            pwd -P; cat numa_node local_cpus local_cpulist max_link_speed max_link_width vendor class
            realpath /sys/class/pci_bus/$(basename $PWD | cut -c-7)/../../$(basename $PWD) /sys/class/net/eth$card/device
            cat ../max_link_speed ../../class
        done
        cat /sys/bus/pci/devices/7572:0f:00.0/vendor /sys/bus/pci/devices/7572:0f:00.0/class
        ls /sys/class/infiniband/mlx5_3/device/net; cat /sys/class/net/eth3/device/numa_node";
    let told = run(&world, &["bash", "-ec", script])?;
    let card = |number: usize, bus: &str, path: &str, node: u8, cpus: &str, list: &str, width: u8| {
        let _ = number;
        let path = format!("/sys/devices/{path}/{bus}:00.0");
        format!(
            "{path}\n{node}\n{cpus}\n{list}\n16.0 GT/s PCIe\n{width}\n0x7572\n0x020000\n{path}\n{path}\n16.0 GT/s PCIe\n0x060400\n"
        )
    };
    let wanted = [
        card(0, "7572:0c", "pci7572:06/7572:06:01.0/7572:07:00.0/7572:0b:00.0", 0, "0000ffff", "0-15", 16),
        card(3, "7572:52", "pci7572:06/7572:06:02.0/7572:45:00.0/7572:49:03.0", 0, "0000ffff", "0-15", 8),
        card(7, "7572:c4", "pci7572:87/7572:87:02.0/7572:b7:00.0/7572:bb:03.0", 1, "ffff0000", "16-31", 8),
        "0x10de\n0x030200\neth3\n0\n".to_owned(),
    ]
    .concat();
    ensure!(told == wanted, "{told}\nwanted\n{wanted}");
    Ok(())
}

/// UCX prefers a card behind the same switch, by the part of the path that two have in common.
#[test]
fn ucx_knows_the_cards_and_their_places() -> Result<()> {
    let world = world()?;
    let told = run(&world, &["sh", "-c", "UCX_LOG_LEVEL=debug UCX_TLS=ib ucx_info -d 2>&1"])?;
    for card in 0..CARDS {
        ensure!(told.contains(&format!("Device: mlx5_{card}:1")), "no mlx5_{card}: {told}");
    }
    let text = file();
    let mut places = BTreeMap::new();
    places_of_file(Document::parse(&text)?.root_element(), &[], &mut 0, &mut places)?;
    let cards: Vec<_> = places.iter().filter_map(|(busid, place)| Some((busid, place.card.as_ref()?))).collect();
    ensure!(cards.len() == CARDS, "{cards:?}");
    for (busid, card) in cards {
        let line = format!("{card}: bdf_name {} ", busid.replacen("0000:", "7572:", 1));
        ensure!(told.contains(&line), "no {line:?}: {told}");
    }
    Ok(())
}

#[test]
fn bad_files_are_one_line() -> Result<()> {
    let world = world()?;
    let file = world.dir().join("topology.xml");
    let say = |options: &[&str]| -> Result<String> {
        let said = try_run(&world, options, &["true"])?;
        ensure!(said.status.code() == Some(125) && said.stderr.lines().count() == 1, "{said}");
        Ok(said.stderr)
    };
    let said = say(&[])?;
    ensure!(said.contains("--topology") && said.contains("--personality pci"), "{said}");
    fs::write(&file, self::file().replace("0000:c4:00.0", "0000:c4"))?;
    let said = say(&["--personality", "pci"])?;
    ensure!(said.contains("topology.xml: line 27: busid=\"0000:c4\" of <pci>"), "{said}");
    fs::write(&file, "<system><cpu numaid='0'><pci busid='0000:01:00.0' class='0x020000'/></cpu></system>")?;
    let said = say(&["--personality", "pci"])?;
    ensure!(said.contains("1 network functions") && said.contains("none is left for mlx5_1"), "{said}");
    fs::remove_file(&file)?;
    let said = say(&["--personality", "pci"])?;
    ensure!(said.contains("topology.xml: No such file"), "{said}");
    Ok(())
}
