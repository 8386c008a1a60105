//! Devices of OpenMLS for the simulator. Each line of the standard input is one request, and each
//! line of the standard output its answer, both JSON. See clientsim/agents/README.md.

use std::{
    collections::{HashMap, HashSet},
    io::{self, BufRead, Write},
};

use base64::{engine::general_purpose::STANDARD, Engine as _};
use openmls::{
    prelude::{hash_ref::ProposalRef, tls_codec::Deserialize as _, *},
    schedule::{ExternalPsk, PreSharedKeyId, Psk},
};
use openmls_basic_credential::SignatureKeyPair;
use openmls_libcrux_crypto::Provider as Libcrux;
use openmls_memory_storage::MemoryStorage;
use openmls_rust_crypto::OpenMlsRustCrypto;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The type of the proposals that an application defines for itself. Private use (RFC 9420 §17.4).
const CUSTOM_PROPOSAL: u16 = 0xF001;

type Failure = Box<dyn std::error::Error>;

/// Bytes are base64 in JSON.
#[derive(Default, Clone, PartialEq, Eq, Hash)]
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        STANDARD.decode(text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(&self.0))
    }
}

/// A request. Which fields count depends on the operation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    op: String,
    /// The caller's name for the device.
    device: String,
    /// For `device`: the device whose signature key it gets.
    #[serde(default)]
    former: String,
    #[serde(default)]
    identity: String,
    #[serde(default)]
    suite: u16,
    #[serde(default)]
    group: Bytes,
    /// A KeyPackage, a Welcome, a GroupInfo, a message of the log, or a plaintext.
    #[serde(default)]
    input: Bytes,
    #[serde(default)]
    add: Vec<Bytes>,
    #[serde(default)]
    remove: Vec<u32>,
    /// Commits are PrivateMessages.
    #[serde(default)]
    hidden: bool,
    /// For `propose`: the kind of proposal.
    #[serde(default)]
    proposal: String,
    /// For `keepPsk`: the external PSK with the id `input`.
    #[serde(default)]
    secret: Bytes,
}

/// An answer. Absent fields have no meaning for the operation.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature_key: Option<Bytes>,
    /// The KeyPackage, GroupInfo or message that the operation made.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    staged: Option<Staged>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<Received>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

/// A commit that is not accepted yet.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Staged {
    group: Bytes,
    epoch: u64,
    commit: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    welcome: Option<Bytes>,
    group_info: Bytes,
}

/// What one message held.
#[derive(Serialize)]
struct Received {
    commit: bool,
    proposal: bool,
    sender: String,
    plaintext: Bytes,
}

/// What a device knows of its group after the operation.
#[derive(Serialize)]
struct State {
    group: Bytes,
    epoch: u64,
    authenticator: Bytes,
    own: u32,
    leaves: Vec<Leaf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leaf {
    index: u32,
    identity: String,
    signature_key: Bytes,
}

/// The cryptography of a device, with storage of its own. OpenMLS has two, and each lacks a suite.
trait Provider: OpenMlsProvider<StorageProvider = MemoryStorage> + Default {}
impl Provider for OpenMlsRustCrypto {}
impl Provider for Libcrux {}

/// One installation of an app.
struct Device<P> {
    provider: P,
    identity: String,
    suite: Ciphersuite,
    signer: SignatureKeyPair,
    /// What the leaf lists as understood, with a GREASE value (RFC 9420 §13.5) in each list. No
    /// extension has such a type: OpenMLS 0.9.2 refuses a leaf or a KeyPackage with one.
    capabilities: Capabilities,
    groups: HashMap<Bytes, MlsGroup>,
    /// The proposals that came encrypted. The server could not judge them, so the device's own commits
    /// leave them out; another member's commit can refer to them.
    encrypted: HashSet<ProposalRef>,
    /// Groups after an external commit that the server has not accepted yet.
    joining: HashMap<Bytes, MlsGroup>,
}

impl<P: Provider> Device<P> {
    fn new(identity: &str, suite: Ciphersuite, signer: Option<SignatureKeyPair>) -> Result<Self, Failure> {
        let signer = match signer {
            Some(signer) => signer,
            None => SignatureKeyPair::new(suite.signature_algorithm())?,
        };
        let provider = P::default();
        signer.store(provider.storage())?;
        let identity = identity.to_owned();
        let capabilities = Capabilities::builder()
            .proposals(vec![ProposalType::SelfRemove, ProposalType::Custom(CUSTOM_PROPOSAL)])
            .with_grease(provider.rand())
            .build();
        let (groups, joining, encrypted) = (HashMap::new(), HashMap::new(), HashSet::new());
        Ok(Device { provider, identity, suite, signer, capabilities, groups, encrypted, joining })
    }

    fn credential(&self) -> CredentialWithKey {
        CredentialWithKey {
            credential: BasicCredential::new(self.identity.clone().into_bytes()).into(),
            signature_key: self.signer.to_public_vec().into(),
        }
    }

    fn key_package(&self) -> Result<Bytes, Failure> {
        let bundle = KeyPackage::builder()
            .leaf_node_capabilities(self.capabilities.clone())
            .build(self.suite, &self.provider, &self.signer, self.credential())?;
        Ok(Bytes(MlsMessageOut::from(bundle.into_key_package()).to_bytes()?))
    }

    fn create(&mut self, id: &Bytes) -> Result<State, Failure> {
        let config = MlsGroupCreateConfig::builder()
            .ciphersuite(self.suite)
            .use_ratchet_tree_extension(true)
            .wire_format_policy(MIXED_PLAINTEXT_WIRE_FORMAT_POLICY)
            .capabilities(self.capabilities.clone())
            .build();
        let group_id = GroupId::from_slice(&id.0);
        let group = MlsGroup::new_with_group_id(&self.provider, &self.signer, &config, group_id, self.credential())?;
        self.keep(group)
    }

    fn keep(&mut self, group: MlsGroup) -> Result<State, Failure> {
        let state = state(&group)?;
        self.groups.insert(state.group.clone(), group);
        Ok(state)
    }

    fn join(&mut self, message: &Bytes) -> Result<State, Failure> {
        let MlsMessageBodyIn::Welcome(welcome) = read(message)? else {
            return Err("not a Welcome".into());
        };
        let group = StagedWelcome::build_from_welcome(&self.provider, &join_config(false), welcome)?
            .replace_old_group()
            .build()?
            .into_group(&self.provider)?;
        self.keep(group)
    }

    /// Prepares a commit. The group stays in its epoch until `confirm`.
    fn stage(&mut self, request: &Request) -> Result<Staged, Failure> {
        let mut change = Change { add: Vec::new(), remove: Vec::new() };
        for message in &request.add {
            let MlsMessageBodyIn::KeyPackage(package) = read(message)? else {
                return Err("not a KeyPackage".into());
            };
            change.add.push(package.validate(self.provider.crypto(), ProtocolVersion::Mls10)?);
        }
        change.remove.extend(request.remove.iter().map(|leaf| LeafNodeIndex::new(*leaf)));
        let Device { provider, signer, encrypted, .. } = self;
        let group = self.groups.get_mut(&request.group).ok_or("no such group")?;
        group.set_configuration(provider.storage(), &join_config(request.hidden))?;
        let chosen = committable(group, provider, signer, encrypted, &change);
        let bundle = build(group, provider, signer, &change, &chosen)?.stage_commit(provider)?;
        let epoch = group.epoch().as_u64() + 1;
        staged(request.group.clone(), epoch, bundle)
    }

    /// Makes an external commit. It removes the leaf with this device's signature key, if the group
    /// has one.
    fn join_external(&mut self, message: &Bytes) -> Result<Staged, Failure> {
        let MlsMessageBodyIn::GroupInfo(info) = read(message)? else {
            return Err("not a GroupInfo".into());
        };
        let leaf = LeafNodeParameters::builder()
            .with_capabilities(self.capabilities.clone())
            .build();
        let (group, bundle) = MlsGroup::external_commit_builder()
            .with_config(join_config(false))
            .build_group(&self.provider, info, self.credential())?
            .leaf_node_parameters(leaf)
            .load_psks(self.provider.storage())?
            .build(self.provider.rand(), self.provider.crypto(), &self.signer, |_| true)?
            .finalize(&self.provider)?;
        let id = Bytes(group.group_id().to_vec());
        let epoch = group.epoch().as_u64();
        self.joining.insert(id.clone(), group);
        staged(id, epoch, bundle)
    }

    /// Proposes to the group in clear. The next commit of this device refers to the proposal.
    fn propose(&mut self, request: &Request) -> Result<Bytes, Failure> {
        let group = self.groups.get_mut(&request.group).ok_or("no such group")?;
        group.set_configuration(self.provider.storage(), &join_config(false))?;
        let message = match request.proposal.as_str() {
            "selfRemove" => group.leave_group_via_self_remove(&self.provider, &self.signer)?,
            "custom" => {
                let custom = CustomProposal::new(CUSTOM_PROPOSAL, request.input.0.clone());
                group.propose_custom_proposal_by_reference(&self.provider, &self.signer, custom)?.0
            }
            "psk" => {
                let psk = Psk::External(ExternalPsk::new(request.input.0.clone()));
                let psk = PreSharedKeyId::new(self.suite, self.provider.rand(), psk)?;
                group.propose_pre_shared_key(&self.provider, &self.signer, psk)?.0
            }
            other => return Err(format!("OpenMLS makes no proposal {other}").into()),
        };
        Ok(Bytes(message.to_bytes()?))
    }

    /// Keeps an external PSK for the proposals that name its id.
    fn keep_psk(&self, id: &Bytes, secret: &Bytes) -> Result<(), Failure> {
        let psk = Psk::External(ExternalPsk::new(id.0.clone()));
        PreSharedKeyId::new(self.suite, self.provider.rand(), psk)?.store(&self.provider, &secret.0)?;
        Ok(())
    }

    fn process(&mut self, id: &Bytes, message: &Bytes) -> Result<(Received, State), Failure> {
        let group = self.groups.get_mut(id).ok_or("no such group")?;
        let message: ProtocolMessage = match read(message)? {
            MlsMessageBodyIn::PublicMessage(message) => message.into(),
            MlsMessageBodyIn::PrivateMessage(message) => message.into(),
            _ => return Err("neither a commit nor a message".into()),
        };
        let is_proposal = message.content_type() == ContentType::Proposal;
        let is_encrypted = matches!(message, ProtocolMessage::PrivateMessage(_));
        let processed = match group.process_message(&self.provider, message) {
            // A proposal that the library refuses is one that no commit contains.
            Err(_) if is_proposal => {
                let received = Received { commit: false, proposal: true, sender: String::new(), plaintext: Bytes::default() };
                return Ok((received, state(group)?));
            }
            processed => processed?,
        };
        let sender = identity(processed.credential())?;
        let received = match processed.into_content() {
            ProcessedMessageContent::ApplicationMessage(message) => {
                Received { commit: false, proposal: false, sender, plaintext: Bytes(message.into_bytes()) }
            }
            ProcessedMessageContent::StagedCommitMessage(commit) => {
                group.clear_pending_commit(self.provider.storage())?;
                group.merge_staged_commit(&self.provider, *commit)?;
                Received { commit: true, proposal: false, sender, plaintext: Bytes::default() }
            }
            ProcessedMessageContent::ProposalMessage(proposal) => {
                let reference = proposal.proposal_reference_ref().clone();
                group.store_pending_proposal(self.provider.storage(), *proposal)?;
                if group.commit_builder().load_psks(self.provider.storage()).is_err() {
                    // It needs a PSK that this device does not have.
                    group.remove_pending_proposal(self.provider.storage(), &reference)?;
                } else if is_encrypted {
                    self.encrypted.insert(reference);
                }
                Received { commit: false, proposal: true, sender, plaintext: Bytes::default() }
            }
            _ => return Err("neither a message, nor a commit or proposal of another member".into()),
        };
        Ok((received, state(group)?))
    }
}

/// What a commit adds and removes, besides the pending proposals.
struct Change {
    add: Vec<KeyPackage>,
    remove: Vec<LeafNodeIndex>,
}

/// The pending proposals that a commit with the change can contain (RFC 9420 §12.2). A device that put
/// each pending proposal into each commit could be stopped by one bad proposal.
fn committable<P: Provider>(
    group: &mut MlsGroup,
    provider: &P,
    signer: &SignatureKeyPair,
    encrypted: &HashSet<ProposalRef>,
    change: &Change,
) -> HashSet<ProposalRef> {
    let pending: Vec<_> = group.pending_proposals().map(|p| p.proposal_reference_ref().clone()).collect();
    let mut chosen = HashSet::new();
    for reference in pending.into_iter().filter(|reference| !encrypted.contains(reference)) {
        chosen.insert(reference.clone());
        if build(group, provider, signer, change, &chosen).is_err() {
            chosen.remove(&reference);
        }
    }
    chosen
}

/// Builds a commit of the change and of the chosen proposals. The group stays as it is.
fn build<'a, P: Provider>(
    group: &'a mut MlsGroup,
    provider: &'a P,
    signer: &SignatureKeyPair,
    change: &Change,
    chosen: &HashSet<ProposalRef>,
) -> Result<CommitBuilder<'a, Complete>, Failure> {
    let wanted = |p: &QueuedProposal| {
        p.proposal_or_ref_type() == ProposalOrRefType::Proposal || chosen.contains(p.proposal_reference_ref())
    };
    Ok(group
        .commit_builder()
        .propose_adds(change.add.clone())
        .propose_removals(change.remove.clone())
        .force_self_update(true)
        .load_psks(provider.storage())?
        .build(provider.rand(), provider.crypto(), signer, wanted)?)
}

/// The configuration of a group: the tree goes along, and handshakes are readable or hidden.
fn join_config(hidden: bool) -> MlsGroupJoinConfig {
    let policy = match hidden {
        true => MIXED_CIPHERTEXT_WIRE_FORMAT_POLICY,
        false => MIXED_PLAINTEXT_WIRE_FORMAT_POLICY,
    };
    MlsGroupJoinConfig::builder().use_ratchet_tree_extension(true).wire_format_policy(policy).build()
}

fn read(message: &Bytes) -> Result<MlsMessageBodyIn, Failure> {
    Ok(MlsMessageIn::tls_deserialize_exact(&message.0)?.extract())
}

fn identity(credential: &Credential) -> Result<String, Failure> {
    let basic = BasicCredential::try_from(credential.clone())?;
    Ok(String::from_utf8(basic.identity().to_vec())?)
}

fn staged(group: Bytes, epoch: u64, bundle: CommitMessageBundle) -> Result<Staged, Failure> {
    let (commit, welcome, info) = bundle.into_messages();
    let welcome = welcome.map(|w| w.to_bytes()).transpose()?.map(Bytes);
    let info = info.ok_or("the commit has no GroupInfo")?;
    Ok(Staged { group, epoch, commit: Bytes(commit.to_bytes()?), welcome, group_info: Bytes(info.to_bytes()?) })
}

fn state(group: &MlsGroup) -> Result<State, Failure> {
    let mut leaves = Vec::new();
    for member in group.members() {
        leaves.push(Leaf {
            index: member.index.u32(),
            identity: identity(&member.credential)?,
            signature_key: Bytes(member.signature_key),
        });
    }
    Ok(State {
        group: Bytes(group.group_id().to_vec()),
        epoch: group.epoch().as_u64(),
        authenticator: Bytes(group.epoch_authenticator().as_slice().to_vec()),
        own: group.own_leaf_index().u32(),
        leaves,
    })
}

/// What a device does whatever its cryptography.
trait Operations {
    /// The signature key, as it is stored.
    fn signer(&self) -> Option<SignatureKeyPair>;
    /// Serves one request to the device.
    fn serve(&mut self, request: &Request) -> Result<Answer, Failure>;
}

impl<P: Provider> Operations for Device<P> {
    fn signer(&self) -> Option<SignatureKeyPair> {
        SignatureKeyPair::read(self.provider.storage(), self.signer.public(), self.suite.signature_algorithm())
    }

    fn serve(&mut self, request: &Request) -> Result<Answer, Failure> {
        operate(self, request)
    }
}

/// Serves one request.
fn serve(devices: &mut HashMap<String, Box<dyn Operations>>, request: &Request) -> Result<Answer, Failure> {
    if request.op != "device" {
        return devices.get_mut(&request.device).ok_or("no such device")?.serve(request);
    }
    let signer = match request.former.is_empty() {
        true => None,
        false => devices.get(&request.former).ok_or("no such former device")?.signer(),
    };
    let suite = Ciphersuite::try_from(request.suite)?;
    let (public, device): (_, Box<dyn Operations>) = match suite {
        Ciphersuite::MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519 => {
            let device = Device::<Libcrux>::new(&request.identity, suite, signer)?;
            (device.signer.to_public_vec(), Box::new(device))
        }
        _ => {
            let device = Device::<OpenMlsRustCrypto>::new(&request.identity, suite, signer)?;
            (device.signer.to_public_vec(), Box::new(device))
        }
    };
    devices.insert(request.device.clone(), device);
    Ok(Answer { signature_key: Some(Bytes(public)), ..Default::default() })
}

fn operate<P: Provider>(device: &mut Device<P>, request: &Request) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    let group = device.groups.get_mut(&request.group).ok_or("no such group");
    match request.op.as_str() {
        "keyPackage" => answer.output = Some(device.key_package()?),
        "create" => answer.state = Some(device.create(&request.group)?),
        "join" => answer.state = Some(device.join(&request.input)?),
        "stage" => answer.staged = Some(device.stage(request)?),
        "confirm" => {
            let group = group?;
            group.merge_pending_commit(&device.provider)?;
            answer.state = Some(state(group)?);
        }
        "discard" => group?.clear_pending_commit(device.provider.storage())?,
        "joinExternal" => answer.staged = Some(device.join_external(&request.input)?),
        "confirmJoin" => {
            let group = device.joining.remove(&request.group).ok_or("no external commit is staged")?;
            answer.state = Some(device.keep(group)?);
        }
        "discardJoin" => {
            if let Some(mut group) = device.joining.remove(&request.group) {
                group.delete(device.provider.storage())?;
            }
        }
        "groupInfo" => {
            let info = group?.export_group_info(device.provider.crypto(), &device.signer, true)?;
            answer.output = Some(Bytes(info.to_bytes()?));
        }
        "encrypt" => {
            let message = group?.create_message(&device.provider, &device.signer, &request.input.0)?;
            answer.output = Some(Bytes(message.to_bytes()?));
        }
        "grease" => {} // see Device::capabilities
        "propose" => answer.output = Some(device.propose(request)?),
        "keepPsk" => device.keep_psk(&request.input, &request.secret)?,
        "process" => {
            let (received, state) = device.process(&request.group, &request.input)?;
            (answer.received, answer.state) = (Some(received), Some(state));
        }
        "forget" => {
            if let Some(mut group) = device.groups.remove(&request.group) {
                group.delete(device.provider.storage())?;
            }
        }
        other => return Err(format!("no operation {other}").into()),
    }
    Ok(answer)
}

fn main() -> Result<(), Failure> {
    let mut devices = HashMap::new();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = serve(&mut devices, &request)
            .unwrap_or_else(|err| Answer { error: Some(format!("{}: {err}", request.op)), ..Default::default() });
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}
