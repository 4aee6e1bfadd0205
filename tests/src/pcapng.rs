//! From tcpdump's pcap to pcapng, with the interface's name and a comment in it.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

/// Rewrites `from` as `to`.
///
/// # Errors
/// When one cannot be read or the other not be written.
pub fn convert(from: &Path, to: &Path, interface: &str, comment: &str) -> Result<()> {
    let mut reader =
        PcapReader::new(File::open(from)?).with_context(|| format!("reading {}", from.display()))?;
    let mut writer = PcapNgWriter::new(BufWriter::new(File::create(to)?))?;
    writer.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: reader.header().datalink,
        snaplen: reader.header().snaplen,
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
            InterfaceDescriptionOption::Comment(Cow::Borrowed(comment)),
        ],
    })?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.with_context(|| format!("reading {}", from.display()))?;
        writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: packet.timestamp,
            original_len: packet.orig_len,
            data: packet.data,
            options: Vec::new(),
        })?;
    }
    Ok(())
}
