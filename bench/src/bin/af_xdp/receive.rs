//! podwire as a receiving command, for the measurement of losses: `af-xdp receive HOW INTERFACE` until SIGINT, then
//! what it kept, as JSON.
#![allow(clippy::print_stdout, reason = "the result is what is printed")]

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::ValueEnum;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use podwire_datapath::core::wire::decap;
use podwire_datapath::xsk::{Copying, Front, Options, Tally};
use serde_json::json;

use crate::own::wanted;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// It is counted.
    Count,
    /// The frame inside is written as pcapng, to /dev/null.
    Pcapng,
}

/// Receives until SIGINT.
///
/// # Errors
/// When the interface cannot be opened.
pub fn run(how: How, interface: &str) -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    let told = end.clone();
    podwire_tests::signals::on_end(move || told.store(true, Ordering::Relaxed))?;
    let options = Options {
        copying: Copying::Copy,
        surplus: podwire_datapath::xsk::Surplus::Drop,
        ..Options::default()
    };
    let mut front = Front::collect(interface, &wanted(), &options)?;
    let mut writer = PcapNgWriter::new(BufWriter::with_capacity(1 << 18, File::create("/dev/null")?))?;
    writer.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: Vec::new(),
    })?;
    let listens = decap::Receiver::default();
    let (mut kept, mut undecodable) = (0u64, 0u64);
    while !end.load(Ordering::Relaxed) {
        for receiver in &mut front.receivers {
            let mut batch = receiver.receive(Duration::from_millis(50))?;
            let timestamp = SystemTime::now().duration_since(UNIX_EPOCH)?;
            while let Some(packet) = batch.next() {
                if how == How::Pcapng {
                    let outer = packet.bytes();
                    let Ok(found) = decap::decapsulate(&outer, &listens) else {
                        undecodable += 1;
                        continue;
                    };
                    let inner = outer.get(found.inner).unwrap_or_default();
                    writer.write_pcapng_block(EnhancedPacketBlock {
                        interface_id: 0,
                        timestamp,
                        original_len: inner.len() as u32,
                        data: Cow::Borrowed(inner),
                        options: Vec::new(),
                    })?;
                }
                kept += 1;
            }
        }
    }
    let tallies: Vec<Tally> = front.receivers.iter().map(|receiver| receiver.tally()).collect();
    let lost: Vec<_> = tallies
        .iter()
        .map(|tally| json!({"behind": tally.behind, "dead": tally.dead, "kernel": format!("{:?}", tally.kernel)}))
        .collect();
    println!("{}", json!({"kind": "Summary", "delivered": kept, "undecodable": undecodable, "lost": lost}));
    Ok(())
}
