//! A tap device. In: batches. Out: frames that arrive at the device, as if they came from the wire.
//!
//! The device goes with the process, however that ends, unless it was there before.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use super::background::{Batch, Writer};
use crate::error::{Context, Error, ErrorKind};

/// See the module.
#[derive(Debug)]
pub struct Tap {
    name: String,
    file: File,
}

impl Tap {
    /// Makes the device, or takes a tap that is there, and brings it up.
    ///
    /// # Errors
    /// `Invalid`: the name is no interface's name, or that of a device of another kind. `PermissionDenied`: without
    /// `CAP_NET_ADMIN`.
    pub fn create(name: &str) -> Result<Self, Error> {
        let about = || format!("making tap {name}");
        let file = File::options().read(true).write(true).open("/dev/net/tun").context(about)?;
        // IFF_TAP and IFF_NO_PI of linux/if_tun.h.
        let mut request = request(name).context(about)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        if let Err(error) = control(&file, libc::TUNSETIFF as u64, &mut request) {
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EBUSY)) {
                let what = format!("{name} is no tap that is free: a device of this name is in use");
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            return Err(error).context(about);
        }
        crate::netdev::quiet(name);
        up(name).context(about)?;
        Ok(Self { name: name.to_owned(), file })
    }
}

impl Writer for Tap {
    fn write(&mut self, batch: &Batch) -> Result<(), (u64, Error)> {
        let mut lost = 0;
        let mut first = None;
        for (_, data) in batch.frames() {
            if let Err(error) = self.file.write(data) {
                lost += 1;
                first.get_or_insert(error);
            }
        }
        match first {
            None => Ok(()),
            Some(error) => {
                let what = format!("tap {} did not take a frame", self.name);
                Err((lost, Error::caused(ErrorKind::Kernel, what, error)))
            }
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

fn control(file: &impl AsRawFd, command: u64, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is a whole `struct ifreq` that outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as _, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn up(name: &str) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut request = request(name)?;
    control(&socket, libc::SIOCGIFFLAGS as u64, &mut request)?;
    // SAFETY: the kernel has just written this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    control(&socket, libc::SIOCSIFFLAGS as u64, &mut request)
}
