//! One page over HTTP/1.1 (RFC 9112). In: two namespaces. Out: success when each byte of the page arrived as sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::netns::NetNs;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// A page of a known content.
#[derive(Clone, Debug)]
pub struct Page {
    /// The server's address, IPv4 or IPv6.
    pub address: String,
    /// The server's port.
    pub port: u16,
    /// Length of the body in bytes.
    pub bytes: usize,
}

impl Page {
    /// Serves the page in `server` and fetches it from `client`.
    ///
    /// # Errors
    /// When it does not arrive within seconds, is too short or too long, or differs in any byte.
    pub fn fetch(&self, client: &NetNs, server: &NetNs) -> Result<()> {
        let address: IpAddr = self.address.parse().context("the server's address")?;
        let address = SocketAddr::new(address, self.port);
        let listener = server.enter(move || TcpListener::bind(address).context("binding the server"))?;
        let body = self.body();
        let served = std::thread::spawn(move || serve(&listener, &body));
        let body = client.enter(move || request(address));
        let served = served.join().ok().context("the server panicked")?;
        let (body, wanted) = (body?, self.body());
        served?;
        if let Some(at) = body.iter().zip(&wanted).position(|(got, sent)| got != sent) {
            bail!("byte {at} of the page differs");
        }
        anyhow::ensure!(body.len() == wanted.len(), "{} of {} bytes arrived", body.len(), wanted.len());
        Ok(())
    }

    /// 251 is prime: a segment lost, doubled or moved shows, whatever its length.
    fn body(&self) -> Vec<u8> {
        (0..self.bytes).map(|offset| (offset % 251) as u8).collect()
    }
}

fn serve(listener: &TcpListener, body: &[u8]) -> Result<()> {
    let mut stream = accept(listener)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body).context("sending the page")
}

/// An accept that gives up, for a client that never comes.
fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
    bail!("nobody asked for the page")
}

fn request(server: SocketAddr) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connecting")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("reading the page")?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a head")?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200 "), "the server did not say 200");
    Ok(answer.split_off(head + 4))
}
