// A client of mlsd. See README.md.

export { Client, type ClientEvents, type ClientOptions, type Counts, type Page, type Sending, type SendOptions } from "./client.js"
export {
  Attachments, FileChangedError, type FilePointer, openFile, type SealedFile, sealFile, type TransferOptions,
} from "./attachments.js"
export type { Envelope, Message } from "./core.js"
export { LexValidationError } from "@atproto/lex-schema"
export { asConvoId, asDid, type ConvoId, type Did } from "./ids.js"
export {
  type History, type HistoryBundle, HistoryError, type HistoryEvents, type HistoryRequest, type ImportedItem, isHistory,
} from "./history.js"
export {
  type Body, body, bodyAs, type BodyOf, type Content, ContentError, decodeContent, encodeContent, type Facet, type Kind, kindOf,
  type MessageName,
} from "./content.js"
export { type Entry, type Reaction, type Receipt, type ShownMessage, Transcript } from "./transcript.js"
export type { CommitChange, DeviceOf } from "./changes.js"
export type { Dispute } from "./disputes.js"
export { ContraryError } from "./binding.js"
export { type Device, UnknownDeviceError } from "./devices.js"
export type { OwnDevice } from "./own-devices.js"
export type { Doubt } from "./members.js"
export type { Missing } from "./missing.js"
export type { DeviceNews } from "./news.js"
export { type Clock, systemClock } from "./clock.js"
export { CodeError, type CodeProblem, formatDigits } from "./digits.js"
export {
  ClosedError, DiscardedError, errorName, NoAnswerError, OutOfStepError, OwnDeviceError, retryTable, type Rule, SealError,
  SignedOutError, StoreError, StoreOpenError, StuckError, UnknownConvoError, type Verdict, verdictOf, XrpcError,
} from "./errors.js"
export { Api, type Input, type Method, type Output, type Params, withIdempotencyKey } from "./api.js"
export { type Call, DirectTransport, type Fetch, type PdsAgent, PdsTransport, type Transport } from "./transport.js"
export type { InvitationPolicy } from "./consent.js"
export type { Accepted } from "./requests.js"
export { endpointOf, type OtherServices } from "./services.js"
export { type GroupCode, groupCode } from "./group-code.js"
export {
  compareSafetyNumbers, parseSafetyNumber, type SafetyComparison, safetyNumber, type SafetyNumber, safetyNumberText,
} from "./safety-number.js"
export type { ClockOffset } from "./server-time.js"
export { SessionTransport } from "./transport-session.js"
export { type Changes, MemoryStore, type NamedRecord, type Range, type Store } from "./store.js"
export { IndexedDBStore, type OpenOptions } from "./store-indexeddb.js"
export {
  type Added, Outbox, type OutboxEvents, type OutboxParts, type Plan, type RefusedWrite, type Sealed, type SealedWrite,
  type Write, type Writer,
} from "./outbox.js"
export type { Kept, KeptWrite } from "./kept.js"
export { Locks } from "./locks.js"
export type { LexValue } from "./json.js"
export type { Change, Group, Header, Info, Joined, Member, Mls, NewKeyPackage, Processed, Staged } from "./mls.js"
export type { ConvoRequest, FailedCommit, Item, Thread } from "./records.js"
export type { LogChecks, MakeLogChecks } from "./log-checks.js"
export type { ContraryFinding, Finding, LieFinding, OtherKeyFinding, WentBackFinding } from "./log-findings.js"
export type { SignalEvent, StreamEvent } from "./events.js"
export { type MemberCursor, mostSignals } from "./signals.js"
export type { OpenSocket, Socket } from "./events-socket.js"
export { type InvitedDevice, WelcomeLostError } from "./welcome.js"
export type { Committed } from "./write-commits.js"
export type { SendContent, SentMessage } from "./write-messages.js"
export { AccountAwayError, type Accounts, type ListedDevice, type MemoryAccount, MemoryAccounts, recordKeyOf } from "./accounts.js"
