//! `podwire capture` as a user runs it, and what is in its files.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use podwire_core::stage::{Transport, parse};
use podwire_harness::binary;

/// A command that captures.
#[derive(Debug)]
pub struct Capturing {
    child: Child,
    said: Receiver<String>,
    lines: Vec<String>,
    /// Its file.
    pub file: PathBuf,
}

/// How it ended.
#[derive(Debug)]
pub struct Captured {
    /// Its exit code; of one that was killed the signal's number below zero.
    pub code: i32,
    /// What it said.
    pub said: String,
    /// What is in its file.
    pub file: PcapNg,
}

impl Capturing {
    /// Starts it against agents by their sockets, writing to `file`, and returns when it says that it captures.
    ///
    /// # Errors
    /// When it ends before.
    pub fn start(sockets: &[&Path], file: &Path, words: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary());
        for socket in sockets {
            command.arg("--socket").arg(socket);
        }
        command.arg("capture").args(words).arg("-w").arg(file);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().context("no standard error")?;
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut capturing = Self { child, said, lines: Vec::new(), file: file.to_owned() };
        capturing.wait_for("capturing at")?;
        Ok(capturing)
    }

    /// Waits for a line.
    ///
    /// # Errors
    /// When it does not come within ten seconds.
    pub fn wait_for(&mut self, words: &str) -> Result<()> {
        loop {
            let Ok(line) = self.said.recv_timeout(Duration::from_secs(10)) else {
                bail!("it does not say {words:?}: {:?}", self.lines);
            };
            self.lines.push(line.clone());
            if line.contains(words) {
                return Ok(());
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().try_into()?), signal)?)
    }

    /// Ctrl-C, a moment after the last packet.
    ///
    /// # Errors
    /// When it does not end, or its file is not whole.
    pub fn interrupt(self) -> Result<Captured> {
        std::thread::sleep(Duration::from_millis(200));
        self.signal(Signal::SIGINT)?;
        self.finish()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end within half a minute, or its file is not whole.
    pub fn finish(mut self) -> Result<Captured> {
        let mut status = None;
        for _ in 0..3000 {
            status = self.child.try_wait()?;
            if status.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let Some(status) = status else {
            self.child.kill()?;
            self.child.wait()?;
            bail!("it does not end: {:?}", self.lines);
        };
        self.lines.extend(self.said.iter());
        let code = status.code().or(status.signal().map(|signal| -signal)).context("no code")?;
        let file = PcapNg::read(&self.file)?;
        Ok(Captured { code, said: self.lines.join("\n"), file })
    }
}

impl Captured {
    /// It ended with this code.
    ///
    /// # Errors
    /// With what it said.
    pub fn ended(self, code: i32) -> Result<Self> {
        ensure!(self.code == code, "code {}, not {code}: {}", self.code, self.said);
        Ok(self)
    }
}

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
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.read_to_end(&mut bytes)?;
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
