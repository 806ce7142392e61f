//! RS256 and ES256, the algorithms that Kubernetes signs tokens with: a `jsonwebtoken` provider on top of ring.
//!
//! The library's own backends bring many more algorithms and a second implementation of each. ring is already linked,
//! for TLS.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtSigner, JwtVerifier};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};
use signature::{Signer, Verifier};

/// Makes `jsonwebtoken` use ring in this process.
pub fn install() {
    static ONCE: Once = Once::new();
    static RING: CryptoProvider = CryptoProvider {
        signer_factory,
        verifier_factory,
        jwk_utils: JwkUtils::new_unimplemented(),
    };
    ONCE.call_once(|| {
        // Fails only if a provider is already installed.
        let _ = RING.install_default();
    });
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    match (algorithm, key.family(), key.kind()) {
        (Algorithm::RS256, AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => Ok(Box::new(Rsa {
            n: n.clone(),
            e: e.clone(),
        })),
        (Algorithm::ES256, AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => {
            Ok(Box::new(Ecdsa { point: point.clone() }))
        }
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

fn signer_factory(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    match (algorithm, key.family()) {
        (Algorithm::RS256, AlgorithmFamily::Rsa) => {
            let pair =
                RsaKeyPair::from_der(key.inner()).map_err(|error| ErrorKind::InvalidRsaKey(error.to_string()))?;
            Ok(Box::new(RsaSigner(pair)))
        }
        (Algorithm::ES256, AlgorithmFamily::Ec) => {
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.inner(), &SystemRandom::new())
                .map_err(|_| ErrorKind::InvalidEcdsaKey)?;
            Ok(Box::new(EcdsaSigner(pair)))
        }
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

struct Rsa {
    n: Vec<u8>,
    e: Vec<u8>,
}

struct Ecdsa {
    point: Vec<u8>,
}

impl Verifier<Vec<u8>> for Rsa {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let key = RsaPublicKeyComponents { n: &self.n, e: &self.e };
        key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            .map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Rsa {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

impl Verifier<Vec<u8>> for Ecdsa {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point)
            .verify(message, signature)
            .map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Ecdsa {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}

struct RsaSigner(RsaKeyPair);

struct EcdsaSigner(EcdsaKeyPair);

impl Signer<Vec<u8>> for RsaSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        let mut signed = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signed)
            .map_err(|_| signature::Error::new())?;
        Ok(signed)
    }
}

impl JwtSigner for RsaSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

impl Signer<Vec<u8>> for EcdsaSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        let signed = self.0.sign(&SystemRandom::new(), message);
        Ok(signed.map_err(|_| signature::Error::new())?.as_ref().to_vec())
    }
}

impl JwtSigner for EcdsaSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}
