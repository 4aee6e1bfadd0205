//! HTTP over the agent's Unix socket.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::failure::Failure;

/// Speaks to one agent.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// For the agent behind a socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Asks for something.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::GET, path, String::new())
    }

    /// Sends something. Empty parameters are left out.
    pub fn post(&self, path: &str, query: &[(&str, &str)], body: String) -> Result<Value, Failure> {
        self.send(Method::POST, &with_query(path, query), body)
    }

    fn send(&self, method: Method, path: &str, body: String) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (status, bytes) = runtime.block_on(self.exchange(method, path, body))?;
        judge(status, &bytes)?;
        serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))
    }

    /// Asks for JSON lines and hands on each as it comes, until the agent ends them.
    pub fn lines(&self, path: &str, each: impl FnMut(Value) -> Result<(), Failure>) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.read_lines(Method::GET, path, String::new(), each))
    }

    /// Sends something and hands on each line of the answer as it comes, until the agent ends them, the user
    /// interrupts, or it takes longer than `limit`. Then the connection is closed.
    pub fn post_lines(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: String,
        limit: Duration,
        each: impl FnMut(Value) -> Result<(), Failure>,
    ) -> Result<Ended, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let path = with_query(path, query);
        runtime.block_on(async {
            tokio::select! {
                read = self.read_lines(Method::POST, &path, body, each) => read.map(|()| Ended::Whole),
                interrupted = interrupted() => interrupted.map(|()| Ended::Interrupted),
                () = tokio::time::sleep(limit) => Ok(Ended::Overdue),
            }
        })
    }

    /// As [`Client::get`], for who speaks to several agents at once.
    pub async fn ask(&self, path: &str) -> Result<Value, Failure> {
        let (status, bytes) = self.exchange(Method::GET, path, String::new()).await?;
        judge(status, &bytes)?;
        serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))
    }

    /// Sends something; the answer comes in pieces.
    pub async fn open(&self, path: &str, body: String) -> Result<Pieces, Failure> {
        let response = self.request(Method::POST, path, body).await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status >= 400 {
            let bytes = (&mut body).collect().await.map_err(|error| broken(&error))?.to_bytes();
            judge(status, &bytes)?;
        }
        Ok(Pieces(body))
    }

    async fn read_lines(
        &self,
        method: Method,
        path: &str,
        body: String,
        mut each: impl FnMut(Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let response = self.request(method, path, body).await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status >= 400 {
            let bytes = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
            return judge(status, &bytes);
        }
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(&error))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                each(serde_json::from_slice(&line).map_err(|error| unreadable(&error))?)?;
            }
        }
        Ok(())
    }

    async fn exchange(&self, method: Method, path: &str, body: String) -> Result<(u16, Bytes), Failure> {
        let response = self.request(method, path, body).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| broken(&error))?;
        Ok((status, body.to_bytes()))
    }

    async fn request(&self, method: Method, path: &str, body: String) -> Result<Response<Incoming>, Failure> {
        let unreachable = |error: std::io::Error| {
            let socket = self.socket.display();
            Failure::Unreachable(format!(
                "no agent answers at {socket}: {error}; start one with 'podwire agent', or name its socket with --socket"
            ))
        };
        let stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "podwire")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Failure::Run(format!("building a request: {error}")))?;
        sender.send_request(request).await.map_err(|error| broken(&error))
    }
}

/// An answer as it comes.
#[derive(Debug)]
pub struct Pieces(Incoming);

impl Pieces {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// Who ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The agent: it is complete.
    Whole,
    /// The user, by SIGINT or SIGTERM.
    Interrupted,
    /// It took too long.
    Overdue,
}

/// Returns at SIGINT or SIGTERM.
pub async fn interrupted() -> Result<(), Failure> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// What a status and its body mean, when it is not what was asked for.
fn judge(status: u16, bytes: &[u8]) -> Result<(), Failure> {
    if status == 413 {
        let limit = podwire_datapath::object::MAX_TEXT;
        return Err(Failure::Refused(vec![format!(
            "the objects are too long; allowed: {limit} bytes in one file"
        )]));
    }
    if status < 400 {
        return Ok(());
    }
    let answer: Value = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
    let details = answer["details"].as_array().into_iter().flatten();
    let lines: Vec<String> = details.filter_map(|line| Some(line.as_str()?.to_owned())).collect();
    Err(match status {
        404 => Failure::NotFound(lines),
        422 => Failure::Refused(lines),
        _ => Failure::Run(lines.join("; ")),
    })
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::Run(format!("the agent's answer cannot be read: {error}"))
}

/// Empty parameters are left out.
fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let query: Vec<String> = query
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", escape(value)))
        .collect();
    format!("{path}?{}", query.join("&"))
}

fn broken(error: &hyper::Error) -> Failure {
    Failure::Run(format!("speaking to the agent: {error}"))
}

/// Percent-encoding of a query parameter.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => (byte as char).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
