//! The file's elements. Those that are about something else (`<gpu>`, `<nvlink>`) are passed over.

use std::fmt::Display;
use std::str::FromStr as _;

use anyhow::{Result, anyhow, bail, ensure};
use roxmltree::{Document, Node};

use super::{Address, Cpu, Ids, Link, Locality, MOST_FUNCTIONS, Net, Pci, SPEEDS};

/// Switches in switches that there may be.
const DEEPEST: usize = 16;

/// Parses the file's text.
pub(super) fn parse(text: &str) -> Result<Vec<Cpu>> {
    let document = Document::parse(text).map_err(|error| anyhow!("line {}: {error}", error.pos().row))?;
    let root = document.root_element();
    ensure!(
        root.has_tag_name("system"),
        "line {}: <{}> where <system> is expected",
        line(root),
        root.tag_name().name()
    );
    let mut cpus = Vec::new();
    for node in children(root, "cpu") {
        let locality = Locality { numa_node: numa_node(node)?, cpus: affinity(node)? };
        cpus.push(Cpu { line: line(node), locality, below: functions(node, DEEPEST)? });
    }
    ensure!(!cpus.is_empty(), "line {}: no <cpu> in <system>", line(root));
    let count: usize = cpus.iter().flat_map(|cpu| &cpu.below).map(count).sum();
    ensure!(count <= MOST_FUNCTIONS, "{count} PCI functions, and {MOST_FUNCTIONS} at most");
    Ok(cpus)
}

fn count(pci: &Pci) -> usize {
    1 + pci.below.iter().map(count).sum::<usize>()
}

fn children<'a, 'input>(node: Node<'a, 'input>, name: &'static str) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

fn line(node: Node<'_, '_>) -> u32 {
    node.document().text_pos_at(node.range().start).row
}

fn invalid<T>(node: Node<'_, '_>, attribute: &str, value: &str, expected: impl Display) -> Result<T> {
    bail!("line {}: {attribute}=\"{value}\" of <{}>: {expected}", line(node), node.tag_name().name())
}

fn required<'a>(node: Node<'a, '_>, attribute: &str) -> Result<&'a str> {
    node.attribute(attribute)
        .ok_or_else(|| anyhow!("line {}: <{}> without {attribute}", line(node), node.tag_name().name()))
}

fn numa_node(cpu: Node<'_, '_>) -> Result<i32> {
    let text = required(cpu, "numaid")?;
    match text.parse() {
        Ok(number @ -1..=1023) => Ok(number),
        _ => invalid(cpu, "numaid", text, "a number from -1 to 1023 is expected"),
    }
}

/// The mask, in groups of 32 bits with the highest first, and the same processors as a list.
fn affinity(cpu: Node<'_, '_>) -> Result<Option<(String, String)>> {
    let Some(text) = cpu.attribute("affinity").filter(|text| !text.is_empty()) else { return Ok(None) };
    let group = |word: &str| u32::from_str_radix(word, 16).ok().filter(|_| word.len() <= 8);
    let Some(groups) = text.split(',').map(group).collect::<Option<Vec<u32>>>().filter(|all| all.len() <= 256) else {
        return invalid(
            cpu,
            "affinity",
            text,
            "groups of up to 8 hexadecimal digits, such as 0000ffff,ffff0000, are expected",
        );
    };
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, group) in groups.iter().rev().enumerate() {
        for number in (0..32).filter(|bit| group >> bit & 1 == 1).map(|bit| index * 32 + bit) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
    }
    let range =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    Ok(Some((text.to_owned(), ranges.iter().map(range).collect::<Vec<_>>().join(","))))
}

fn functions(parent: Node<'_, '_>, depth: usize) -> Result<Vec<Pci>> {
    children(parent, "pci").map(|node| function(node, depth)).collect()
}

fn function(node: Node<'_, '_>, depth: usize) -> Result<Pci> {
    ensure!(depth > 0, "line {}: <pci> within {DEEPEST} others", line(node));
    let nics: Vec<Node<'_, '_>> = children(node, "nic").collect();
    let nets = nics.iter().flat_map(|nic| children(*nic, "net"));
    Ok(Pci {
        line: line(node),
        address: address(node)?,
        class: class(node)?,
        ids: ids(node)?,
        link: link(node)?,
        has_nic: !nics.is_empty(),
        nets: nets.filter_map(net).collect(),
        below: functions(node, depth - 1)?,
    })
}

fn net(node: Node<'_, '_>) -> Option<Net> {
    Some(Net { line: line(node), name: node.attribute("name")?.to_owned() })
}

fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    let is_number = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

fn address(pci: Node<'_, '_>) -> Result<Address> {
    let text = required(pci, "busid")?;
    match parse_address(text) {
        Some(address) => Ok(address),
        None => {
            invalid(pci, "busid", text, "DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, such as 0000:0c:00.0, is expected")
        }
    }
}

fn parse_address(text: &str) -> Option<Address> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text: &str, digits, most| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        hexadecimal(text, digits).filter(|number| is_number && *number <= most)
    };
    Some(Address {
        domain: u16::try_from(number(domain, 4, 0xffff)?).ok()?,
        bus: u8::try_from(number(bus, 2, 0xff)?).ok()?,
        device: u8::try_from(number(device, 2, 0x1f)?).ok()?,
        function: u8::try_from(number(function, 1, 7)?).ok()?,
    })
}

fn class(pci: Node<'_, '_>) -> Result<u32> {
    let text = required(pci, "class")?;
    match hexadecimal(text, 6) {
        Some(class) => Ok(class),
        None => invalid(pci, "class", text, "six hexadecimal digits, such as 0x020000 of a network card, are expected"),
    }
}

/// `None` if the file does not say.
fn ids(pci: Node<'_, '_>) -> Result<Option<Ids>> {
    let id = |attribute: &str| match pci.attribute(attribute) {
        None => Ok(None),
        Some(text) => match hexadecimal(text, 4).and_then(|id| u16::try_from(id).ok()) {
            Some(id) => Ok(Some(id)),
            None => invalid(pci, attribute, text, "four hexadecimal digits, such as 0x15b3, are expected"),
        },
    };
    let (vendor, device) = (id("vendor")?, id("device")?);
    let (subsystem_vendor, subsystem_device) = (id("subsystem_vendor")?, id("subsystem_device")?);
    Ok(vendor.zip(device).map(|(vendor, device)| Ids {
        vendor,
        device,
        subsystem_vendor: subsystem_vendor.unwrap_or(vendor),
        subsystem_device: subsystem_device.unwrap_or(device),
    }))
}

/// Empty and missing is 16 lanes at 16 GT/s.
fn link(pci: Node<'_, '_>) -> Result<Link> {
    let given = |attribute: &'static str| pci.attribute(attribute).filter(|text| !text.is_empty());
    let speed = given("link_speed").map_or(Ok(Link::DEFAULT.speed), |text| match speed(text) {
        Some(speed) => Ok(speed),
        None => invalid(pci, "link_speed", text, format_args!("one of {} is expected", SPEEDS.join(", "))),
    })?;
    let width = given("link_width").map_or(Ok(Link::DEFAULT.width), |text| match u8::from_str(text) {
        Ok(width @ (1 | 2 | 4 | 8 | 12 | 16 | 32)) => Ok(width),
        _ => invalid(pci, "link_width", text, "1, 2, 4, 8, 12, 16 or 32 lanes are expected"),
    })?;
    Ok(Link { speed, width })
}

/// Files have `16 GT/s`, `16.0 GT/s` and `16.0 GT/s PCIe`.
fn speed(text: &str) -> Option<u8> {
    let rate = |text: &str| text.split_once(" GT/s")?.0.parse::<f32>().ok();
    let wanted = rate(text)?;
    (1..).zip(SPEEDS).find(|(_, known)| rate(known) == Some(wanted)).map(|(number, _)| number)
}
