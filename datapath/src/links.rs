//! Programs on interfaces. In: an interface and a hook. Out: exactly one program of ours there, pinned.
//!
//! Attach or update, never detach and attach: the kernel swaps the program behind a link between two packets.
//! Links are found by our own pin only, filters by our own priority and handle; nothing of others is touched.

use std::fs;
use std::io;

use aya::Ebpf;
use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{
    NlOptions, SchedClassifier, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle,
    qdisc_add_clsact,
};
use aya::programs::{ProgramError, TcError};
use aya::sys::SyscallError;
use podwire_core::abi::Direction;

use crate::error::{Context, Error, ErrorKind};
use crate::pins::Pins;
use crate::probe;

/// How programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// tcx where the kernel has it, else clsact.
    #[default]
    Auto,
    /// tcx links (kernel 6.6 on).
    Tcx,
    /// Filters on a clsact qdisc.
    Clsact,
}

/// Priority and handle of our clsact filters: the first to run, and ours alone.
const PRIORITY: u16 = 1;
const HANDLE: TcHandle = TcHandle::new(0, 0x7077);

/// Whether to use tcx.
pub(crate) fn resolve(hook: Hook) -> Result<bool, Error> {
    match hook {
        Hook::Clsact => Ok(false),
        Hook::Auto => Ok(probe::has_tcx()),
        Hook::Tcx if probe::has_tcx() => Ok(true),
        Hook::Tcx => Err(Error::new(ErrorKind::Unsupported, "this kernel has no tcx links (Linux 6.6 on)")),
    }
}

/// An interface's hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) interface: &'a str,
    pub(crate) ifindex: u32,
    pub(crate) direction: Direction,
}

impl Place<'_> {
    fn kind(&self) -> TcAttachType {
        match self.direction {
            Direction::Egress => TcAttachType::Ingress,
            Direction::Ingress => TcAttachType::Egress,
        }
    }
}

/// Attaches a program, or swaps it in where one of ours is.
pub(crate) fn attach(
    bpf: &mut Ebpf,
    program: &str,
    pins: &Pins,
    tcx: bool,
    place: Place,
) -> Result<(), Error> {
    let what = || format!("attaching program {program} to {}", place.interface);
    let classifier = classifier(bpf, program)?;
    if tcx { attach_tcx(classifier, pins, place) } else { attach_clsact(classifier, pins, place) }
        .context(what)
}

fn attach_tcx(classifier: &mut SchedClassifier, pins: &Pins, place: Place) -> Result<(), Failure> {
    let path = pins.link(place.ifindex, place.direction);
    match PinnedLink::from_pin(&path) {
        Ok(old) => {
            let link: SchedClassifierLink = FdLink::from(old).try_into()?;
            match classifier.attach_to_link(link) {
                Ok(id) => {
                    // The pin keeps the link; the handle may go.
                    drop(classifier.take_link(id)?);
                    return Ok(());
                }
                Err(error) if is_dead_link(&error) => fs::remove_file(&path)?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    // First on the hook: a program of others that ends the hook must not hide packets from us.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = classifier.attach_with_options(place.interface, place.kind(), options)?;
    let link: FdLink = classifier.take_link(id)?.try_into()?;
    link.pin(&path)?;
    Ok(())
}

fn attach_clsact(classifier: &mut SchedClassifier, pins: &Pins, place: Place) -> Result<(), Failure> {
    match qdisc_add_clsact(place.interface) {
        Ok(()) => {}
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(nix::libc::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
    let id = match classifier.attach_with_options(
        place.interface,
        place.kind(),
        TcAttachOptions::Netlink(options),
    ) {
        Ok(id) => id,
        Err(first) => {
            // Ours from an earlier run: replaced in place.
            let old = SchedClassifierLink::attached(place.interface, place.kind(), PRIORITY, HANDLE, None)?;
            classifier.attach_to_link(old).map_err(|_| first)?
        }
    };
    // A filter lives until it is deleted; dropping the handle would delete it.
    std::mem::forget(classifier.take_link(id)?);
    // A filter cannot be pinned. Its program is, so that the next run knows of the filter.
    let path = pins.link(place.ifindex, place.direction);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    classifier.pin(&path)?;
    Ok(())
}

/// Takes our program off an interface that may be gone already.
pub(crate) fn detach(pins: &Pins, tcx: bool, place: Place) -> Result<(), Error> {
    match fs::remove_file(pins.link(place.ifindex, place.direction)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => result.context(|| format!("unpinning the link of interface {}", place.ifindex))?,
    }
    // A filter went with its device; another one may have the name by now.
    let same = nix::net::if_::if_nametoindex(place.interface).is_ok_and(|index| index == place.ifindex);
    if tcx || !same {
        return Ok(());
    }
    let Ok(link) = SchedClassifierLink::attached(place.interface, place.kind(), PRIORITY, HANDLE, None)
    else {
        return Ok(());
    };
    // Whether the filter was there does not matter: it is not there afterwards.
    let _ = aya::programs::links::Link::detach(link);
    Ok(())
}

/// A loaded program of the object.
pub(crate) fn classifier<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let program = bpf.program_mut(name).ok_or_else(|| {
        Error::new(ErrorKind::ForeignState, format!("the BPF object has no program {name}"))
    })?;
    program.try_into().context(|| format!("program {name}"))
}

/// Any failure of aya on the way to an attachment.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Tc(#[from] TcError),
    #[error(transparent)]
    Pin(#[from] aya::pin::PinError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn is_not_found(error: &LinkError) -> bool {
    matches!(error, LinkError::SyscallError(SyscallError { io_error, .. })
        if io_error.kind() == io::ErrorKind::NotFound)
}

/// The link's device is gone; the index belongs to another one now.
fn is_dead_link(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(SyscallError { io_error, .. })
        if io_error.raw_os_error() == Some(nix::libc::ENOLINK))
}
