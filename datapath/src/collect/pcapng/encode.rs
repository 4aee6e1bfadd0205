//! Blocks of one file. In: sessions and frames. Out: bytes that the file gets next.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use hashbrown::HashMap;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use podwire_core::wire::erspan::Direction;

use crate::collect::account::Account;
use crate::collect::background::Record;
use crate::collect::session::Session;

/// Timestamps count nanoseconds: ten to the power of minus nine.
const NANOSECONDS: u8 = 9;
/// Direction in the flags of a frame.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Interfaces of a section; then another one begins in the same file.
const INTERFACES: usize = 4096;

/// See the module.
pub(super) struct Encoder {
    writer: PcapNgWriter<Vec<u8>>,
    /// By session.
    interfaces: HashMap<u64, u32>,
    recent: Option<(u64, u32)>,
    /// Headers among what is not written yet: they are needed even when the frames with them could not be written.
    headers: Vec<u8>,
    frames: u64,
}

impl Encoder {
    pub(super) fn begin() -> io::Result<Self> {
        let writer = PcapNgWriter::with_section_header(Vec::new(), section()).map_err(io::Error::other)?;
        let headers = writer.get_ref().clone();
        Ok(Self { writer, interfaces: HashMap::new(), recent: None, headers, frames: 0 })
    }

    /// Whether the file has no frames.
    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// What is not in the file yet.
    pub(super) fn bytes(&self) -> &[u8] {
        self.writer.get_ref()
    }

    /// Says whether it is now. If not, the headers will come again.
    pub(super) fn written(&mut self, all: bool) {
        let bytes = self.writer.get_mut();
        bytes.clear();
        if all {
            self.headers.clear();
        } else {
            bytes.extend_from_slice(&self.headers);
        }
    }

    /// The session's interface, described before its first frame.
    pub(super) fn interface(&mut self, session: &Session) -> u32 {
        if let Some((recent, interface)) = self.recent
            && recent == session.number
        {
            return interface;
        }
        let interface = match self.interfaces.get(&session.number) {
            Some(interface) => *interface,
            None => self.describe(session),
        };
        self.recent = Some((session.number, interface));
        interface
    }

    fn describe(&mut self, session: &Session) -> u32 {
        if self.writer.interfaces().len() >= INTERFACES {
            self.begin_section();
        }
        let number = self.writer.interfaces().len() as u32;
        let began = humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(session.since));
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(session.name())),
                InterfaceDescriptionOption::IfDescription(Cow::Owned(session.key.to_string())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                InterfaceDescriptionOption::Comment(Cow::Owned(format!(
                    "session {} began at {began}",
                    session.number
                ))),
            ],
        };
        let before = self.writer.get_ref().len();
        self.put(block);
        self.headers.extend_from_slice(self.writer.get_ref().get(before..).unwrap_or_default());
        self.interfaces.insert(session.number, number);
        number
    }

    /// Forgets all interfaces: a reader, and this encoder, need not keep more than so many.
    fn begin_section(&mut self) {
        let before = self.bytes().len();
        self.put(section());
        self.headers = self.bytes().get(before..).unwrap_or_default().to_vec();
        self.interfaces.clear();
    }

    pub(super) fn frame(&mut self, interface: u32, record: &Record, data: &[u8]) {
        let flags = match record.direction {
            Some(Direction::Ingress) => vec![EnhancedPacketOption::Flags(INBOUND)],
            Some(Direction::Egress) => vec![EnhancedPacketOption::Flags(OUTBOUND)],
            None => Vec::new(),
        };
        self.put(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(record.time),
            original_len: data.len() as u32,
            data: Cow::Borrowed(data),
            options: flags,
        });
        self.frames += 1;
    }

    /// `overflown`: frames of all sessions that found the queue full.
    pub(super) fn statistics(&mut self, session: u64, account: &Account, overflown: u64) {
        let Some(interface) = self.interfaces.get(&session).copied() else { return };
        let options = vec![
            InterfaceStatisticsOption::IsbStartTime(time(account.first)),
            InterfaceStatisticsOption::IsbEndTime(time(account.last)),
            InterfaceStatisticsOption::IsbIfRecv(account.frames),
            InterfaceStatisticsOption::IsbIfDrop(account.numbers.lost),
            InterfaceStatisticsOption::IsbOsDrop(overflown),
            InterfaceStatisticsOption::IsbUsrDeliv(account.delivered),
        ];
        let timestamp = time(account.last);
        self.put(InterfaceStatisticsBlock { interface_id: interface, timestamp, options });
    }

    fn put<'a>(&mut self, block: impl PcapNgBlock<'a>) {
        // Memory takes everything, and interfaces are described before they are used.
        if let Err(error) = self.writer.write_pcapng_block(block) {
            tracing::debug!(%error, "a block could not be encoded");
        }
    }
}

fn section() -> SectionHeaderBlock<'static> {
    let version = concat!("podwire ", env!("CARGO_PKG_VERSION"));
    SectionHeaderBlock {
        endianness: pcap_file::Endianness::native(),
        options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(version))],
        ..SectionHeaderBlock::default()
    }
}

/// Times of statistics are two words, the high one first (pcapng section 4.6); the crate writes one number.
fn time(nanoseconds: u64) -> u64 {
    if cfg!(target_endian = "little") { nanoseconds.rotate_left(32) } else { nanoseconds }
}
