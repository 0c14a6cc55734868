//! `urxe trace`: a capture as a ladder diagram for people.
//!
//! [`pairs`] finds out which queue pairs talk to each other, [`ladder`] says what each packet is, [`order`] what the order of
//! packets tells; [`text`] and [`html`] draw.

mod html;
mod ladder;
mod order;
#[cfg(test)]
mod page_tests;
pub(crate) mod pairs;
mod row;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use urxe_pcapng::Captured;

use crate::out;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// pcapng files of URXE_PCAP, of one end or of both, and pcapng or pcap files of tshark or tcpdump. What was
    /// captured both where it left and where it came in is one arrow
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Draw the exchange of this queue pair (number, as 17 or 0x11)
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    qp: Option<u32>,

    /// Draw every packet; else the Middle packets of a message are one line
    #[arg(long)]
    all: bool,

    /// Draw a page for browsers, of all exchanges, instead of text: one file, without anything from the network
    #[arg(long)]
    html: bool,
}

pub(crate) fn qpn(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

/// A page beyond this many bytes opens slowly.
const LARGE_PAGE: usize = 48 << 20;
/// A diagram of more rows is not for terminals.
const LONG_TEXT: usize = 20_000;

fn too_large(page: usize) -> Option<String> {
    let mebibytes = page >> 20;
    (page > LARGE_PAGE).then(|| format!("the page has {mebibytes} MiB, and opens slowly: --qp draws one exchange"))
}

fn too_long(rows: usize) -> Option<String> {
    (rows > LONG_TEXT).then(|| format!("{rows} packets: --html has search and filters"))
}

/// Contents of the files.
struct Input {
    packets: Vec<Captured>,
    /// Gaps in the files.
    warnings: Vec<String>,
}

fn read(files: &[PathBuf]) -> Result<Input> {
    let (mut packets, mut warnings) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.display();
        let capture = urxe_pcapng::read(file).with_context(|| name.to_string())?;
        if capture.is_truncated {
            warnings.push(format!("{name} ends within a record: what was captured after it is missing"));
        }
        if capture.cut_short > 0 {
            let count = capture.cut_short;
            warnings.push(format!(
                "{name}: packets that are cut short: {count}; headers or lengths are missing: capture with tcpdump -s 0"
            ));
        }
        packets.extend(capture.packets);
    }
    packets.sort_by_key(|packet| packet.at);
    Ok(Input { packets, warnings })
}

/// Draws every exchange of some captures as text.
pub(crate) fn exchanges(files: &[PathBuf]) -> Result<String> {
    let Input { packets, warnings } = read(files)?;
    let pairs = pairs::find(&packets);
    let draw = |pair: &pairs::Pair| format!("{pair}\n{}\n", text::draw(&ladder::Ladder::new(pair, &packets), false));
    let warnings = warnings.iter().map(|warning| format!("{warning}\n"));
    Ok(warnings.chain(pairs.iter().map(draw)).collect())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Input { packets, warnings } = read(&args.files)?;
    for warning in &warnings {
        out::complain(warning);
    }
    let mut pairs = pairs::find(&packets);
    if let Some(qp) = args.qp {
        pairs.retain(|pair| pair.names(qp));
        if pairs.is_empty() {
            bail!("no packet of QP {qp:#x}: leave --qp out to list the pairs");
        }
    }
    let Some(busiest) = pairs.first() else {
        bail!("no RoCE v2 packet there: `urxe run --pcap FILE -- PROGRAM` records some")
    };
    if args.html {
        let ladders: Vec<_> = pairs.iter().map(|pair| ladder::Ladder::new(pair, &packets)).collect();
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        let page = html::draw(&ladders, &files, &warnings);
        if let Some(warning) = too_large(page.len()) {
            out::complain(&warning);
        }
        return out::print(&page);
    }
    if args.qp.is_none() && pairs.len() > 1 {
        let choice = |pair: &pairs::Pair| format!("\n  --qp {:#x}\t{pair}: {} packets", pair.qpn(), pair.packets.len());
        let (count, choices) = (pairs.len(), pairs.iter().map(choice).collect::<String>());
        out::complain(&format_args!(
            "{count} exchanges; drawing the one with most packets. --qp chooses, --html draws all:{choices}"
        ));
    }
    let ladder = ladder::Ladder::new(busiest, &packets);
    if let Some(warning) = too_long(ladder.rows.len()) {
        out::complain(&warning);
    }
    out::print(&text::draw(&ladder, args.all))
}
