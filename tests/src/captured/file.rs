//! Files of captures. In: pcapng of podwire, pcap of tcpdump. Out: frames.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use podwire_core::stage::{Transport, parse};

/// A frame of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// Which interface.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u128,
    /// Whether the pod sent it, where that is said.
    pub out: Option<bool>,
    /// Length on the wire.
    pub length: u32,
    /// Bytes.
    pub bytes: Vec<u8>,
}

/// What a pcapng file says of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `if_name`.
    pub name: String,
    /// `if_description`.
    pub description: String,
    /// `isb_ifrecv`, `isb_ifdrop`, `isb_usrdeliv`.
    pub counts: Option<[u64; 3]>,
}

/// A pcapng file.
#[derive(Clone, Debug, Default)]
pub struct PcapNg {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its packets in their order.
    pub frames: Vec<Frame>,
}

impl PcapNg {
    /// Reads a file to its last byte.
    ///
    /// # Errors
    /// When a block is cut or strange.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        Self::parse(&bytes)
    }

    /// Of bytes.
    ///
    /// # Errors
    /// When a block is cut or strange.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = PcapNgReader::new(bytes)?;
        let mut file = Self::default();
        while let Some(block) = reader.next_block() {
            match block.context("a block")? {
                Block::InterfaceDescription(block) => {
                    let mut interface = Interface::default();
                    let mut nanoseconds = false;
                    for option in &block.options {
                        match option {
                            InterfaceDescriptionOption::IfName(name) => interface.name = name.to_string(),
                            InterfaceDescriptionOption::IfDescription(text) => {
                                interface.description = text.to_string();
                            }
                            InterfaceDescriptionOption::IfTsResol(9) => nanoseconds = true,
                            _ => {}
                        }
                    }
                    ensure!(nanoseconds, "{block:?}");
                    file.interfaces.push(interface);
                }
                Block::EnhancedPacket(block) => {
                    let flags = block.options.iter().find_map(|option| match option {
                        EnhancedPacketOption::Flags(flags) => Some(flags & 3),
                        _ => None,
                    });
                    file.frames.push(Frame {
                        interface: block.interface_id,
                        time: block.timestamp.as_nanos(),
                        out: flags.map(|flags| flags == 2),
                        length: block.original_len,
                        bytes: block.data.to_vec(),
                    });
                }
                Block::InterfaceStatistics(block) => {
                    let mut counts = [0; 3];
                    for option in &block.options {
                        match option {
                            InterfaceStatisticsOption::IsbIfRecv(count) => counts[0] = *count,
                            InterfaceStatisticsOption::IsbIfDrop(count) => counts[1] = *count,
                            InterfaceStatisticsOption::IsbUsrDeliv(count) => counts[2] = *count,
                            _ => {}
                        }
                    }
                    let interface = file.interfaces.get_mut(block.interface_id as usize);
                    interface.context("statistics of no interface")?.counts = Some(counts);
                }
                _ => {}
            }
        }
        Ok(file)
    }

    /// The frames, without what may differ from what another saw of them: see [`plain`].
    pub fn plain(&self) -> Vec<Vec<u8>> {
        self.frames.iter().filter_map(|frame| plain(&frame.bytes)).collect()
    }
}

/// The frames of tcpdump's file.
///
/// # Errors
/// When it cannot be read.
pub fn tcpdumps(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path)?;
    let mut reader = PcapReader::new(&bytes[..])?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.extend(plain(&packet?.data));
    }
    Ok(frames)
}

/// A frame without the checksum that an offload may leave to be completed; `None` for what kernels send by themselves at
/// times of their own: router solicitations and multicast reports.
pub fn plain(frame: &[u8]) -> Option<Vec<u8>> {
    let facts = parse(&frame);
    if facts.protocol == 58 && matches!(facts.source_port >> 8, 130..=133 | 143) {
        return None;
    }
    let mut frame = frame.to_vec();
    let field = match (facts.transport, facts.protocol) {
        (Transport::Ports, 6) => Some(16),
        (Transport::Ports, 17) => Some(6),
        _ => None,
    };
    if let Some(field) = field {
        let at = facts.transport_offset as usize + field;
        if let Some(sum) = frame.get_mut(at..at + 2) {
            sum.fill(0);
        }
    }
    Some(frame)
}

/// The same frames, in whatever order.
///
/// # Errors
/// With how many are on one side only.
pub fn same(mut ours: Vec<Vec<u8>>, mut theirs: Vec<Vec<u8>>) -> Result<()> {
    ours.sort_unstable();
    theirs.sort_unstable();
    if ours == theirs {
        return Ok(());
    }
    let missing: Vec<&Vec<u8>> = theirs.iter().filter(|frame| !ours.contains(frame)).collect();
    let strange: Vec<&Vec<u8>> = ours.iter().filter(|frame| !theirs.contains(frame)).collect();
    bail!(
        "{} frames against {}; {} missing, as {:02x?}; {} that tcpdump has not, as {:02x?}",
        ours.len(),
        theirs.len(),
        missing.len(),
        missing.first(),
        strange.len(),
        strange.first()
    )
}
