//! The XDP program in front of the workers. In: an interface and what is wanted. Out: packets at the sockets of
//! its queues, while the workers live.

use std::borrow::Cow;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{Array, DevMap, HashMap, Map, MapData, XskMap};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpLinkId};
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use podwire_core::xsk::{Action, ConfigRow, IdKey, IdKind, QUEUES, Role};

use super::heart::{Heart, Rows};
use super::memory::HEADROOM;
use super::options::{Attached, Surplus};
use super::port::Port;
use super::receiver::{Tally, buffer_size};
use crate::collect::Wanted;
use crate::error::{Context, Error, ErrorKind};
use crate::maps::Row;
use crate::{netdev, sys};

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/xsk.bpf.o");
const NAME: &str = "to_worker";
/// The name of a pinned link.
pub(super) const LINK: &str = "link";
/// Drivers that run the program on several CPUs at a time for one queue: in whoever writes to it, or by other devices.
const MANY_CPUS: [&str; 3] = ["tun", "bonding", "hv_netvsc"];
/// Buffers that one packet may take: as many as the kernel's own limit for pieces of a packet (`MAX_SKB_FRAGS` + 1).
const PIECES: u32 = 18;

/// What the program does with packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Tunnel packets are the workers', the rest is the stack's.
    Collect(Wanted, Surplus),
    /// All packets are the workers'; without one they leave by the device of this index, or are dropped.
    Inspect {
        /// The device, and whether packets leave by it uninspected.
        out: u32,
        action: Action,
    },
}

/// The loaded program.
pub struct Program {
    bpf: Ebpf,
    sockets: XskMap<MapData>,
    rows: Arc<Rows>,
    config: Array<MapData, Row<ConfigRow>>,
    row: ConfigRow,
    interface: String,
    attached: Option<Attached>,
    folder: Option<PathBuf>,
    /// Of a program that is pinned: an earlier process that ends late may remove the pin.
    link: Option<FdLink>,
}

impl Program {
    /// Loads the program. With a folder of a bpffs, what is there is adopted, and what is attached stays when the
    /// process ends.
    pub(super) fn load(interface: &str, folder: Option<&Path>) -> Result<Self, Error> {
        let mut loader = EbpfLoader::new();
        let paths: Vec<PathBuf> = match folder {
            Some(folder) => {
                fs::create_dir_all(folder).context(|| format!("creating {}", folder.display()))?;
                MAPS.iter().map(|name| folder.join(name)).collect()
            }
            None => Vec::new(),
        };
        for (name, path) in MAPS.iter().zip(&paths) {
            loader.map_pin_path(name, path.as_path());
        }
        let mut bpf = loader.load(&object()?).context(|| "loading the XDP program".into())?;
        // Before any map is taken out: the program refers to them by descriptor.
        xdp(&mut bpf)?.load().context(|| "loading the XDP program".into())?;
        let sockets =
            XskMap::try_from(take(&mut bpf, "XSK_SOCKETS")?).context(|| "map XSK_SOCKETS".into())?;
        let rows = match take(&mut bpf, "XSK_QUEUES")? {
            Map::Array(data) => Rows::map(data.fd())?,
            _ => return Err(Error::new(ErrorKind::ForeignState, "map XSK_QUEUES is no array")),
        };
        let config = Array::try_from(take(&mut bpf, "XSK_CONFIG")?).context(|| "map XSK_CONFIG".into())?;
        let (interface, folder) = (interface.to_owned(), folder.map(Path::to_owned));
        Ok(Self { bpf, sockets, rows, config, row: NOTHING, interface, attached: None, folder, link: None })
    }

    /// Says what to do, before any packet is looked at. `frame` is the longest that can come.
    pub(super) fn configure(&mut self, work: &Work, frame: u32, patience: Duration) -> Result<(), Error> {
        let room = buffer_size(frame) - HEADROOM;
        let buffers = if frame <= room { 1 } else { PIECES };
        let patience = patience.as_nanos() as u64;
        let mut row = ConfigRow { patience, room, buffers, ..NOTHING };
        match work {
            Work::Collect(wanted, surplus) => {
                row = ConfigRow { patience, room, buffers, ..filter(wanted)? };
                row.behind = match surplus {
                    Surplus::Stack => Action::Pass as u32,
                    Surplus::Drop => Action::Drop as u32,
                };
                self.ask_for(wanted)?;
            }
            Work::Inspect { out, action } => {
                row.role = Role::Inspector as u32;
                row.action = *action as u32;
                row.behind = *action as u32;
                let map = take(&mut self.bpf, "XSK_BYPASS")?;
                let mut bypass = DevMap::try_from(map).context(|| "map XSK_BYPASS".into())?;
                bypass.set(0, *out, None, 0).context(|| "writing map XSK_BYPASS".into())?;
            }
        }
        self.row = row;
        // An earlier process's program may be at work by the same rows, who knows where.
        self.say(Attached::Generic)
    }

    /// Writes what to do. In the stack, several CPUs may have packets of one queue at a time; a driver's poll of it is
    /// on one.
    fn say(&mut self, attached: Attached) -> Result<(), Error> {
        let one_cpu = attached == Attached::Native
            && sys::driver(&self.interface).is_some_and(|name| !MANY_CPUS.contains(&name.as_str()));
        // Elsewhere reads may overtake each other, which the atomic addition also prevents.
        self.row.alone = u32::from(cfg!(target_arch = "x86_64") && one_cpu);
        self.config.set(0, Row(self.row), 0).context(|| "writing map XSK_CONFIG".into())
    }

    /// Enters the identifiers.
    fn ask_for(&mut self, wanted: &Wanted) -> Result<(), Error> {
        let map = take(&mut self.bpf, "XSK_IDS")?;
        let mut ids: HashMap<_, Row<IdKey>, u32> = HashMap::try_from(map).context(|| "map XSK_IDS".into())?;
        for (kind, id) in identifiers(wanted) {
            ids.insert(Row(IdKey { kind: kind as u32, id }), 1, 0).map_err(|error| {
                let what = format!("more than {} identifiers", podwire_core::xsk::IDS);
                Error::caused(ErrorKind::TableFull, what, error)
            })?;
        }
        Ok(())
    }

    /// The row of a queue.
    pub(super) fn heart(&self, queue: u32) -> Result<Heart, Error> {
        self.rows.heart(queue)
    }

    /// Makes a socket its queue's.
    pub(super) fn enter(&mut self, queue: u32, port: &Port) -> Result<(), Error> {
        self.sockets
            .set(queue, port.as_raw_fd(), 0)
            .context(|| format!("entering the socket of queue {queue} of {}", self.interface))
    }

    /// Attaches the program: in the driver, else in the stack.
    pub(super) fn attach(&mut self) -> Result<Attached, Error> {
        let attached = match self.folder.clone() {
            Some(folder) if self.adopt(&folder)? => match netdev::has_driver_xdp(&self.interface) {
                true => Attached::Native,
                false => Attached::Generic,
            },
            folder => self.attach_anew(folder.as_deref())?,
        };
        self.say(attached)?;
        Ok(*self.attached.insert(attached))
    }

    fn attach_anew(&mut self, folder: Option<&Path>) -> Result<Attached, Error> {
        let interface = self.interface.clone();
        let (mut attached, mut link) =
            (Attached::Native, xdp(&mut self.bpf)?.attach(&interface, XdpMode::Driver));
        if link.as_ref().is_err_and(|error| !is_busy(error)) {
            attached = Attached::Generic;
            link = xdp(&mut self.bpf)?.attach(&interface, XdpMode::Skb);
        }
        let link = link.map_err(|error| refused(error, &interface))?;
        if let Some(folder) = folder {
            self.link = Some(pin(self.take(link)?, folder)?);
        }
        Ok(attached)
    }

    /// Puts this program behind an earlier process's link, of this release or another one; `false` when there is none
    /// that still has its interface.
    fn adopt(&mut self, folder: &Path) -> Result<bool, Error> {
        let mut adopted = false;
        for path in links(folder) {
            let own = path.parent() == Some(folder);
            if !adopted && let Some(link) = self.take_over(&path)? {
                adopted = true;
                self.link = Some(if own { link } else { pin(link, folder)? });
            }
            if let Some(other) = path.parent().filter(|_| !own)
                && let Err(error) = fs::remove_dir_all(other)
            {
                // Its owner may just have done so; what is left is removed by the next one.
                tracing::warn!(%error, folder = %other.display(), "what another release left is still there");
            }
        }
        Ok(adopted)
    }

    fn take_over(&mut self, path: &Path) -> Result<Option<FdLink>, Error> {
        let what = || format!("taking over {}", path.display());
        let old = match PinnedLink::from_pin(path) {
            Ok(old) => old,
            Err(_) if !path.exists() => return Ok(None),
            Err(error) => return Err(error).context(what),
        };
        let link = XdpLink::try_from(FdLink::from(old)).context(what)?;
        match xdp(&mut self.bpf)?.attach_to_link(link) {
            Ok(id) => self.take(id).map(Some),
            // Its interface is gone.
            Err(error) if number(&error) == Some(libc::ENOLINK) => {
                fs::remove_file(path).context(|| format!("removing {}", path.display()))?;
                Ok(None)
            }
            Err(error) => Err(error).context(what),
        }
    }

    fn take(&mut self, id: XdpLinkId) -> Result<FdLink, Error> {
        let what = || format!("the XDP link of {}", self.interface);
        let link = xdp(&mut self.bpf)?.take_link(id).context(what)?;
        link.try_into().context(what)
    }

    /// How it is attached.
    pub fn attached(&self) -> Option<Attached> {
        self.attached
    }

    /// Takes everything down, pinned or not.
    pub(super) fn remove(&mut self) {
        self.link = None;
        if let Some(folder) = &self.folder
            && let Err(error) = fs::remove_dir_all(folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %folder.display(), "the program stays on its port");
        }
    }

    /// What the program and the workers counted of every queue.
    pub(super) fn tallies(&self) -> Vec<Tally> {
        (0..QUEUES).filter_map(|queue| self.heart(queue).ok()).map(|heart| Tally::of(&heart)).collect()
    }
}

/// The link then outlives the process. The folder may be gone: an earlier process that ended removed it.
fn pin(link: FdLink, folder: &Path) -> Result<FdLink, Error> {
    let path = folder.join(LINK);
    fs::create_dir_all(folder).context(|| format!("creating {}", folder.display()))?;
    link.pin(&path).map(FdLink::from).context(|| format!("pinning {}", path.display()))
}

/// Where an earlier process may have pinned its link to the same interface: in this folder, or in one beside it that
/// differs in the version that its name begins with.
pub(super) fn links(folder: &Path) -> Vec<PathBuf> {
    let of = |path: &Path| path.file_name()?.to_str()?.split_once('-').map(|(_, rest)| rest.to_owned());
    let beside = folder.parent().and_then(|all| fs::read_dir(all).ok());
    let others = beside.into_iter().flatten().flatten().map(|entry| entry.path());
    let others = others.filter(|path| path != folder && of(path).is_some() && of(path) == of(folder));
    std::iter::once(folder.to_owned())
        .chain(others)
        .map(|folder| folder.join(LINK))
        .filter(|path| path.exists())
        .collect()
}

const MAPS: [&str; 6] = ["XSK_CONFIG", "XSK_QUEUES", "XSK_SOCKETS", "XSK_IDS", "XSK_FRAGMENTS", "XSK_BYPASS"];

/// The object that is built in; tests name another one, built from the sources they test.
fn object() -> Result<Cow<'static, [u8]>, Error> {
    let Some(path) = std::env::var_os("PODWIRE_BPF_OBJECT").map(PathBuf::from) else {
        return Ok(Cow::Borrowed(OBJECT));
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().replacen("podwire.", "xsk.", 1);
    let path = path.with_file_name(name);
    fs::read(&path).map(Cow::Owned).context(|| format!("reading {}", path.display()))
}

fn take(bpf: &mut Ebpf, name: &str) -> Result<Map, Error> {
    bpf.take_map(name)
        .ok_or_else(|| Error::new(ErrorKind::ForeignState, format!("the BPF object has no map {name}")))
}

fn xdp(bpf: &mut Ebpf) -> Result<&mut Xdp, Error> {
    let program = bpf.program_mut(NAME).ok_or_else(|| {
        Error::new(ErrorKind::ForeignState, format!("the BPF object has no program {NAME}"))
    })?;
    program.try_into().context(|| format!("program {NAME}"))
}

/// A row that takes nothing.
const NOTHING: ConfigRow = ConfigRow {
    patience: 0,
    role: Role::Collector as u32,
    action: Action::Pass as u32,
    room: 0,
    formats: 0,
    by_id: 0,
    buffers: 0,
    behind: Action::Pass as u32,
    alone: 0,
    vxlan_ports: [0; ConfigRow::PORTS],
    geneve_ports: [0; ConfigRow::PORTS],
};

/// Which packets a collector's program takes, but for the identifiers themselves.
fn filter(wanted: &Wanted) -> Result<ConfigRow, Error> {
    let formats = [(wanted.gre, ConfigRow::FORMAT_GRE), (wanted.erspan, ConfigRow::FORMAT_ERSPAN)];
    Ok(ConfigRow {
        vxlan_ports: ports("VXLAN", &wanted.vxlan_ports)?,
        geneve_ports: ports("GENEVE", &wanted.geneve_ports)?,
        formats: formats.iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, format)| all | format),
        by_id: identifiers(wanted).fold(0, |kinds, (kind, _)| kinds | kind.bit()),
        ..NOTHING
    })
}

fn identifiers(wanted: &Wanted) -> impl Iterator<Item = (IdKind, u32)> + '_ {
    let vnis = wanted.vnis.iter().map(|vni| (IdKind::Vni, *vni));
    let keys = wanted.keys.iter().map(|key| (IdKind::Key, *key));
    let sessions = wanted.sessions.iter().map(|session| (IdKind::Session, u32::from(*session)));
    vnis.chain(keys).chain(sessions)
}

fn ports(format: &str, ports: &[u16]) -> Result<[u16; ConfigRow::PORTS], Error> {
    let mut row = [0; ConfigRow::PORTS];
    if ports.len() > row.len() {
        let what = format!("{} ports of {format}: at most {} at once", ports.len(), row.len());
        return Err(Error::new(ErrorKind::TableFull, what));
    }
    row[..ports.len()].copy_from_slice(ports);
    Ok(row)
}

fn number(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn is_busy(error: &ProgramError) -> bool {
    number(error) == Some(libc::EBUSY)
}

fn refused(error: ProgramError, interface: &str) -> Error {
    match number(&error) {
        Some(libc::EBUSY) => Error::caused(
            ErrorKind::Busy,
            format!("{interface} has an XDP program of another owner, which stays (`bpftool net` names it)"),
            error,
        ),
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            Error::caused(ErrorKind::Unsupported, format!("{interface} takes no XDP program"), error)
        }
        _ => Err::<(), _>(error)
            .context(|| format!("attaching the XDP program to {interface}"))
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Kernel, "attaching the XDP program")),
    }
}

#[cfg(test)]
mod tests;
