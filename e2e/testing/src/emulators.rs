//! Emulators of Google's and Azure's object stores, for tests of their clients.
//!
//! [`Azurite`] is Microsoft's. [`FakeGcs`] is fake-gcs-server, which answers reads of the XML API that `object_store`
//! uses, and refuses its writes: its objects are given at its start, or by [`FakeGcs::put`].

use std::path::Path;

use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{Program, TestServer, TestServerError};

/// The bucket, or container, that every server has.
pub const BUCKET: &str = "runs";
/// Azurite's account.
pub const ACCOUNT: &str = "team";
/// 32 bytes in base64.
pub const ACCOUNT_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

const HOST: &str = "127.0.0.1";
const INSTALLER: &str = "e2e/setup/emulators.sh";

/// A server of Azure's blobs, with one container.
pub struct Azurite {
    server: TestServer,
    /// Includes the account, as in a manifest.
    pub endpoint: String,
}

impl Azurite {
    /// Keeps its data in `folder`.
    pub async fn start(folder: &Path) -> Result<Self, TestServerError> {
        let data = folder.join("azurite");
        std::fs::create_dir_all(&data)?;
        let program = Program {
            name: "azurite",
            path: "azurite/node_modules/.bin/azurite-blob",
            installer: INSTALLER,
            folder,
            environment: vec![("AZURITE_ACCOUNTS".to_owned(), format!("{ACCOUNT}:{ACCOUNT_KEY}"))],
        };
        let arguments = |port: u16| {
            let (port, data) = (port.to_string(), data.display().to_string());
            let all = [
                "--blobHost",
                HOST,
                "--blobPort",
                &port,
                "--location",
                &data,
                "--silent",
                "--disableTelemetry",
                "--disableProductStyleUrl",
            ];
            all.map(str::to_owned).to_vec()
        };
        let server = TestServer::start(&program, HOST, arguments).await?;
        let endpoint = format!("http://{}/{ACCOUNT}", server.at);
        let container = format!("{endpoint}/{BUCKET}?restype=container");
        let mut request = HttpRequest::new(Vec::new().into());
        *request.method_mut() = http::Method::PUT;
        *request.uri_mut() = container
            .parse()
            .map_err(|error: http::uri::InvalidUri| bucket(&server, error.to_string()))?;
        let key = AzureAccessKey::try_new(ACCOUNT_KEY).map_err(object_store::Error::from)?;
        AzureAuthorizer::new(&AzureCredential::AccessKey(key), ACCOUNT).try_authorize(&mut request)?;
        let head: String = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap_or_default()))
            .collect();
        let path = request.uri().path_and_query().map(ToString::to_string);
        ask(&server, "PUT", &path.unwrap_or_default(), &head, &[]).await?;
        Ok(Self { server, endpoint })
    }

    /// Kills it without notice.
    pub async fn kill(&mut self) -> Result<(), TestServerError> {
        self.server.kill().await
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) -> Result<(), TestServerError> {
        self.server.again()
    }
}

/// A server of Google's objects, in memory, with one bucket.
pub struct FakeGcs {
    server: TestServer,
    pub endpoint: String,
}

impl FakeGcs {
    /// Its log is in `folder`.
    pub async fn start(folder: &Path) -> Result<Self, TestServerError> {
        let buckets = folder.join("buckets");
        std::fs::create_dir_all(buckets.join(BUCKET))?;
        let program = Program {
            name: "fake-gcs-server",
            path: "bin/fake-gcs-server",
            installer: INSTALLER,
            folder,
            environment: Vec::new(),
        };
        let arguments = |port: u16| {
            let (at, port) = (format!("{HOST}:{port}"), port.to_string());
            let data = buckets.display().to_string();
            let all = [
                "-scheme",
                "http",
                "-host",
                HOST,
                "-port",
                &port,
                "-backend",
                "memory",
                "-public-host",
                &at,
                "-data",
                &data,
            ];
            all.map(str::to_owned).to_vec()
        };
        let server = TestServer::start(&program, HOST, arguments).await?;
        Ok(Self {
            endpoint: format!("http://{}", server.at),
            server,
        })
    }

    /// Writes a new version of an object, by the JSON API.
    pub async fn put(&self, name: &str, bytes: &[u8]) -> Result<(), TestServerError> {
        let path = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}");
        ask(&self.server, "POST", &path, "", bytes).await
    }

    /// A service account's key without a request for a token: the server needs none.
    pub fn key() -> String {
        let key =
            serde_json::json!({"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true});
        key.to_string()
    }
}

/// Sends one request, which must succeed. `head` has header lines.
async fn ask(server: &TestServer, method: &str, path: &str, head: &str, body: &[u8]) -> Result<(), TestServerError> {
    let mut stream = TcpStream::connect(&server.at).await?;
    let (at, length) = (&server.at, body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.write_all(body).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.starts_with("HTTP/1.1 20") {
        true => Ok(()),
        false => Err(bucket(server, answer)),
    }
}

fn bucket(server: &TestServer, answer: String) -> TestServerError {
    let at = server.at.clone();
    TestServerError::Bucket { at, answer }
}
