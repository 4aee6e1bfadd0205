//! Packets as pcapng. In: a trace whose packets were captured. Out: a file with an interface for the trace and a
//! block for each packet, from its Ethernet header on.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::result::{CapturedPacket, Trace};
use super::verdict::sentences;
use crate::failure::Failure;

/// Timestamps are written in nanoseconds: ten to the power of minus nine.
const NANOSECONDS: u8 = 9;

/// Bytes of an Ethernet header, and of an IPv6 header, whose length is that of what follows.
const ETHERNET: u32 = 14;
const IPV6: u32 = 40;

/// Writes the packets of a trace; without any bytes of them there is no file.
pub fn write(file: &Path, trace: &Trace) -> Result<(), Failure> {
    let length = |packet: &CapturedPacket| {
        let before = if packet.ipv6_header.is_some() { ETHERNET + IPV6 } else { ETHERNET };
        packet.length.map_or(0, |length| length.saturating_add(before))
    };
    let packets: Vec<(usize, &str, u32)> = trace
        .packets()
        .enumerate()
        .filter_map(|(number, packet)| Some((number + 1, packet.data.as_deref()?, length(packet))))
        .collect();
    if packets.is_empty() {
        let _ = writeln!(
            anstream::stderr(),
            "warning: no packet was captured; {} is not written",
            file.display()
        );
        return Ok(());
    }
    write_packets(file, trace, &packets).with_context(|| format!("writing {}", file.display()))?;
    Ok(())
}

fn write_packets(file: &Path, trace: &Trace, packets: &[(usize, &str, u32)]) -> Result<()> {
    let mut writer = PcapNgWriter::new(BufWriter::new(File::create(file)?))?;
    let verdict: Vec<String> = sentences(trace).into_iter().map(|(_, words)| words).collect();
    writer.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(&trace.name)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            InterfaceDescriptionOption::Comment(Cow::Owned(verdict.join("; "))),
        ],
    })?;
    for (number, data, length) in packets {
        let data = STANDARD.decode(data).with_context(|| format!("packet {number} is no base64"))?;
        let captured = u32::try_from(data.len())?;
        writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: seen_at(trace, *number as u64),
            original_len: captured.max(*length),
            data: Cow::Owned(data),
            options: vec![EnhancedPacketOption::Comment(Cow::Owned(format!("packet {number}")))],
        })?;
    }
    writer.into_inner().flush()?;
    Ok(())
}

/// When the first stage saw a packet.
fn seen_at(trace: &Trace, number: u64) -> Duration {
    let all = trace.results.iter().flat_map(|result| &result.observations);
    let time = all.filter(|seen| seen.packet.unwrap_or(1) == number).find_map(|seen| seen.text("time"));
    time.and_then(|time| humantime::parse_rfc3339(time).ok())
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .unwrap_or_default()
}
