//! TLS to the server, with the meanings that libpq gives to `sslmode`.
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::{ConfigError, Target, Verify};

/// What the pool uses to encrypt a connection.
pub fn connector(target: &Target) -> Result<MakeRustlsConnect, ConfigError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::Tls(error.to_string()))?;
    let config = match target.verify {
        Verify::Full => builder
            .with_root_certificates(roots(target)?)
            .with_no_client_auth(),
        Verify::Authority | Verify::Nothing => {
            let inner = if target.verify == Verify::Authority {
                let inner = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(roots(target)?),
                    provider.clone(),
                )
                .build()
                .map_err(|error| ConfigError::Tls(error.to_string()))?;
                Some(inner)
            } else {
                None
            };
            let verifier = Arc::new(Lenient { inner, provider });
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

/// The authorities of `sslrootcert`, or else those of the system.
fn roots(target: &Target) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &target.root_certificates {
        Some(path) if path.as_os_str() != "system" => {
            let failed =
                |error: String| ConfigError::Certificates(path.display().to_string(), error);
            let mut pem = Vec::new();
            File::open(path)
                .and_then(|mut file| file.read_to_end(&mut pem))
                .map_err(|error| failed(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| failed(error.to_string()))?;
                roots
                    .add(certificate)
                    .map_err(|error| failed(error.to_string()))?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let path = target
            .root_certificates
            .as_ref()
            .map_or("the system".to_owned(), |path| path.display().to_string());
        return Err(ConfigError::Certificates(path, "there is none".to_owned()));
    }
    Ok(roots)
}

/// Accepts what libpq accepts without `verify-full`: certificates for another name, and without
/// `inner` any certificate.
#[derive(Debug)]
struct Lenient {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
