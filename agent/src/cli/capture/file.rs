//! Packets as pcapng. In: packets in their order. Out: a file with an interface for each pod, a block for each packet, and
//! what was counted. It is written in whole blocks, so that it can be read whenever the command ends.

use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use podwire_datapath::core::abi::Direction;

use super::order::Packet;
use super::summary::Interface;
use crate::failure::Failure;

/// Timestamps are written in nanoseconds: ten to the power of minus nine.
const NANOSECONDS: u8 = 9;
/// Of epb_flags (pcapng, section 4.3.1): the packet came in, or went out.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A file that is being written.
pub struct Output {
    /// Whole blocks that are not written yet.
    blocks: PcapNgWriter<Vec<u8>>,
    to: Box<dyn Write>,
}

impl Output {
    /// Creates the file, `-` for standard output.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let to: Box<dyn Write> = if path == Path::new("-") {
            if std::io::stdout().is_terminal() {
                let line =
                    "--write -: standard output is a terminal; name a file, or leave --write out for lines";
                return Err(Failure::Usage(vec![line.into()]));
            }
            Box::new(std::io::stdout())
        } else {
            Box::new(File::create(path).with_context(|| format!("creating {}", path.display()))?)
        };
        let section = SectionHeaderBlock {
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                "podwire ",
                env!("CARGO_PKG_VERSION")
            )))],
            ..SectionHeaderBlock::default()
        };
        let blocks = PcapNgWriter::with_section_header(Vec::new(), section).map_err(unwritten)?;
        let mut output = Self { blocks, to };
        output.flush()?;
        Ok(output)
    }

    /// Adds the pods' interfaces.
    pub fn describe(
        &mut self,
        interfaces: &[Interface],
        snaplen: Option<u32>,
        flow: &str,
    ) -> Result<(), Failure> {
        for interface in interfaces {
            let mut options = vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(&interface.pod)),
                InterfaceDescriptionOption::IfDescription(Cow::Owned(format!(
                    "pod {} on {}",
                    interface.pod, interface.node
                ))),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            if !flow.is_empty() {
                options.push(InterfaceDescriptionOption::Comment(Cow::Owned(format!("only {flow}"))));
            }
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: snaplen.unwrap_or(0),
                options,
            };
            self.blocks.write_pcapng_block(block).map_err(unwritten)?;
        }
        self.flush()
    }

    /// Adds a packet.
    pub fn packet(&mut self, packet: &Packet) -> Result<(), Failure> {
        let direction = match packet.head.direction {
            Direction::Ingress => INBOUND,
            Direction::Egress => OUTBOUND,
        };
        let block = EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: Duration::from_nanos(packet.head.time_ns),
            original_len: packet.head.length,
            data: Cow::Borrowed(&packet.bytes),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        self.blocks.write_pcapng_block(block).map_err(unwritten)?;
        Ok(())
    }

    /// Adds what was counted at each pod, where it is known.
    pub fn end(&mut self, interfaces: &[Interface], begun: SystemTime) -> Result<(), Failure> {
        let now = SystemTime::now();
        for (number, interface) in interfaces.iter().enumerate() {
            let Some(account) = &interface.account else {
                continue;
            };
            let mut options = vec![
                InterfaceStatisticsOption::IsbStartTime(halves(units(begun))),
                InterfaceStatisticsOption::IsbEndTime(halves(units(now))),
                InterfaceStatisticsOption::IsbIfRecv(account.matched),
                InterfaceStatisticsOption::IsbIfDrop(account.lost),
                InterfaceStatisticsOption::IsbFilterAccept(account.matched.saturating_sub(account.filtered)),
                InterfaceStatisticsOption::IsbUsrDeliv(interface.packets),
            ];
            if account.lost > 0 {
                let losses = format!("lost: {}", account.losses());
                options.push(InterfaceStatisticsOption::Comment(Cow::Owned(losses)));
            }
            let block = InterfaceStatisticsBlock {
                interface_id: number as u32,
                timestamp: halves(units(now)),
                options,
            };
            self.blocks.write_pcapng_block(block).map_err(unwritten)?;
        }
        self.flush()
    }

    /// Writes the blocks that wait.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.to.write_all(self.blocks.get_ref())?;
        self.blocks.get_mut().clear();
        Ok(self.to.flush()?)
    }
}

fn units(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Timestamps are two words, the upper one first; the crate writes these as numbers.
const fn halves(time: u64) -> u64 {
    if cfg!(target_endian = "little") { time.rotate_left(32) } else { time }
}

fn unwritten(error: pcap_file::PcapError) -> Failure {
    match error {
        pcap_file::PcapError::IoError(error) => error.into(),
        other => Failure::Run(format!("writing pcapng: {other}")),
    }
}
