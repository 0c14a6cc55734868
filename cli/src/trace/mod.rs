//! `urxe trace`: a capture as a ladder diagram for people.
//!
//! [`read`] takes packets out of a file, [`pairs`] finds out which queue pairs talk to each other, [`ladder`] says what each
//! packet is; [`text`] and [`html`] draw.

mod html;
mod ladder;
mod pairs;
mod text;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

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

    /// Draw an HTML page (SVG inside) instead of text
    #[arg(long)]
    html: bool,
}

fn qpn(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

/// Draws every exchange of some captures as text.
pub(crate) fn exchanges(files: &[PathBuf]) -> Result<String> {
    let mut packets = Vec::new();
    for file in files {
        packets.extend(urxe_pcapng::packets(file).with_context(|| file.display().to_string())?);
    }
    packets.sort_by_key(|packet| packet.at);
    let pairs = pairs::find(&packets);
    let draw = |pair: &pairs::Pair| format!("{pair}\n{}\n", text::draw(&ladder::Ladder::new(pair, &packets, false)));
    Ok(pairs.iter().map(draw).collect())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut packets = Vec::new();
    for file in &args.files {
        packets.extend(urxe_pcapng::packets(file).with_context(|| file.display().to_string())?);
    }
    packets.sort_by_key(|packet| packet.at);
    let pairs = pairs::find(&packets);
    let chosen = match args.qp {
        Some(qp) => pairs.iter().find(|pair| pair.names(qp)).with_context(|| format!("no packet of QP {qp:#x}"))?,
        None => match &pairs[..] {
            [] => bail!("no RoCE v2 packet in there"),
            [one] => one,
            [busiest, ..] => {
                let choice =
                    |pair: &pairs::Pair| format!("\n  --qp {:#x}\t{pair}: {} packets", pair.qpn(), pair.packets.len());
                let (count, choices) = (pairs.len(), pairs.iter().map(choice).collect::<String>());
                out::complain(&format_args!(
                    "{count} exchanges; drawing the one with most packets. --qp chooses:{choices}"
                ));
                busiest
            }
        },
    };
    let ladder = ladder::Ladder::new(chosen, &packets, args.all);
    out::print(&if args.html { html::draw(&ladder) } else { text::draw(&ladder) })
}
