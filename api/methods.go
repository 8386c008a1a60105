package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/idem"
	"mlsd/internal/attachments"
	"mlsd/internal/nsid"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/people/accounts"
)

// policy is what the server decides about one method, besides what its lexicon says.
type policy struct {
	// maxBody is the longest body, in bytes. 0: the method has none.
	maxBody int64
	// answerMemory is the memory reserved for the answer and for what it is made from, in bytes.
	answerMemory int64
	// maxTime is how long a request can take. 0: maxRequest.
	maxTime time.Duration
	// lease is that of the method's work outside the database. 0: it does none.
	lease time.Duration
	// cost is what a request takes from its caller's rate limit, in units. 0 stands for 1. What a
	// request really spends is added: see [call.spend].
	cost int
	// expensive says that a request takes several times as long, here and in the database, as that
	// for a message or a page. See [admission].
	expensive bool
	token     tokenUse
	// noSession says that a session does not do: the method takes service-auth tokens only.
	noSession bool
	// recordLife is the lifetime of the method's idempotency records, unless the operator sets
	// another. 0: it writes none.
	recordLife time.Duration
	minLife    idem.Floor
	maxLife    time.Duration // the longest that an operator can set; 0: idem.MaxLife
	// violations are the rules of the lexicon whose violation has an error name of its own.
	violations []violation
	// serves are the states of accounts, besides active, whose requests are served: an account has
	// a right to its data, whatever its host says of it. What the operator has blocked is not
	// served.
	serves []accounts.Status
	// services says that other services call the method. Whom the node admits does not matter for it: it
	// asks package network whom it deals with.
	services bool
	// countOutcomes says that mlsd_welcome_fetches_total counts the method's answers.
	countOutcomes bool
	// standby says that the method only reads, and may read from a standby: its handler reads from
	// call.db. A look-up of one row is not worth the question that a standby costs.
	standby bool
}

// violation is a broken rule of one field, and the error name that answers it. field is the path
// without an index.
type violation struct {
	field string
	rule  lexcodec.Rule
	name  string
}

// tokenUse says who uses up a request's service-auth token, so that it is good for one request.
type tokenUse int

const (
	reusable       tokenUse = iota // not used up: the method can be called again with the same token
	usedByDispatch                 // admit in dispatch.go, before the handler runs
	usedByHandler                  // the handler, so that a copy of the request can get the first answer
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// Longest bodies, in bytes.
const (
	bodySignal   = 16 * kib
	bodySmall    = 256 * kib
	bodyReport   = 512 * kib // 256 KiB of a sealed report, in base64
	bodyPackages = 3 * mib   // 100 KeyPackages of 20 KiB each, in base64
	bodyCommit   = 14 * mib  // a commit, a Welcome and a GroupInfo of 10 MiB together, in base64
	bodyPart     = attachments.PartSize
	bodyMessage  = 15 * mib // 10 MiB of ciphertext in base64, and the other fields
)

// Memory of answers, in bytes. It covers the rows that an answer is made from.
const (
	answerSmall  = 4 * kib
	answerCounts = 128 * kib   // one entry for each KeyPackage, cipher suite or device
	answerRoster = 256 * kib   // a convo with 1,000 members
	answerObject = 4 * mib     // a Welcome, a GroupInfo, or the KeyPackages of a claim; larger ones take more: see holdObjects
	answerPage   = 512 * kib   // at first: it grows as its rows come
	answerBytes  = answerPiece // at a time
)

// How long requests of attachments can take.
const (
	maxUpload   = 2 * time.Minute  // of a part, by a client as slow as uploadPace allows
	maxComplete = 45 * time.Second // the work goes on if the client hangs up
)

// costStream is what a method that holds a connection costs, in units of the rate limit of a DID.
const costStream = 4

// What the methods about the caller's own data cost, in units. What the reading of an export takes
// is added: see unitExport.
const (
	costExport = 5
	costErase  = 20
)

// costHead is what a head of a log or a proof costs, in units: some reads, and a signature. What
// the server has to hash for it costs more, by its bytes.
const costHead = 2

// costComplete is what completing an attachment costs, in units. What it reads was paid when it
// came.
const costComplete = 4

// costFind is what a look-up of a person's delivery service costs, in units: at most three documents.
const costFind = 10

// costSession is what buying or refreshing a session costs, in units: a look-up of a DID document.
const costSession = 10

// States of accounts that some methods serve.
var (
	notActive = []accounts.Status{accounts.Deactivated, accounts.Suspended, accounts.TakenDown, accounts.Deleted}
	// orErasing is for the method that begins an erasure: its repetition gets the first answer.
	orErasing = append(slices.Clip(notActive), accounts.Erasing)
)

// Lifetimes of idempotency records. After it the key is new again, and only the write's own check
// against a double effect is left: docs/IDEMPOTENCY.md lists them.
const (
	recordDay   = 24 * time.Hour
	recordHour  = time.Hour
	recordClaim = 30 * time.Minute // as long as the claim of a KeyPackage
	leaseShort  = time.Minute      // of work outside the database
)

// Floors of lifetimes that an operator can set.
var (
	// minAnswer is for writes whose own check prevents a second effect at any time, but answers
	// a repetition with an error.
	minAnswer = idem.Floor{Life: time.Hour, Because: "a token can be valid for an hour, so a copy of the request can arrive that late and must get its first answer"}
	// minTarget is for writes whose repetition undoes a later one.
	minTarget = idem.Floor{Life: time.Hour, Because: "a token can be valid for an hour, so a copy of the request can arrive that late and must not undo a later one"}
	// minUpload is for completeAttachment, whose record has the fence.
	minUpload = idem.Floor{Life: 2 * attachments.UnfinishedLife, Because: "an upload can go on for a day after its last part, and its record has the fence"}
	// minClaim is for getKeyPackages: without its record a repetition claims other KeyPackages.
	minClaim = idem.Floor{Life: recordClaim, Because: "without its record a repetition claims other KeyPackages while the first claim still lasts"}
)

// methods are all methods of the lexicons by NSID. A method's NSID is also its label in the
// metrics. sendMessage has no record: the message itself is its record, and lasts as long.
var methods = map[string]policy{
	nsid.AcceptConvo: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.AddMembers: {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer,
		violations: []violation{{"didList", lexcodec.RuleMaxLength, mlsapi.ErrTooManyMembers}}},
	nsid.AcceptInvitation: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.BlockActor:       {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.CompleteAttachment: {maxBody: bodySmall, answerMemory: answerSmall, cost: costComplete, expensive: true, token: usedByDispatch, maxTime: maxComplete,
		recordLife: idem.DefaultLife, minLife: minUpload, lease: leaseShort},
	nsid.ConfirmWelcome:   {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	nsid.CreateAttachment: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.CreateConvo: {maxBody: bodyCommit, answerMemory: answerRoster, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer,
		violations: []violation{{"initialMembers", lexcodec.RuleMaxLength, mlsapi.ErrTooManyMembers}}},
	// A session cannot buy another: who has stolen one has it for an hour.
	nsid.CreateSession:     {maxBody: bodySmall, answerMemory: answerSmall, cost: costSession, token: usedByDispatch, noSession: true},
	nsid.DeclineInvitation: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.DeleteAttachment:  {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.DeliverErasure:    {maxBody: bodySmall, answerMemory: answerSmall, cost: costErase, expensive: true, token: usedByDispatch, noSession: true, services: true},
	nsid.DeliverInvitation: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, noSession: true, services: true},
	nsid.DeleteSession:     {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	// The record of the first step holds the token, so it does not last longer than it must. The
	// token itself is the record of the second step.
	nsid.EraseMyAccount: {maxBody: bodySmall, answerMemory: answerSmall, cost: costErase, token: usedByDispatch, noSession: true,
		recordLife: recordHour, minLife: minAnswer, serves: orErasing},
	nsid.ExportMyData:        {answerMemory: answerPage, cost: costExport, serves: notActive, standby: true},
	nsid.GetAttachment:       {answerMemory: answerBytes},
	nsid.GetAttachmentStatus: {answerMemory: answerSmall},
	nsid.GetBlocks:           {answerMemory: answerCounts, standby: true},
	nsid.GetCommits:          {answerMemory: answerPage, standby: true},
	nsid.GetConvo:            {answerMemory: answerRoster, standby: true},
	nsid.GetConvos:           {answerMemory: answerPage, expensive: true, standby: true},
	nsid.GetCursorPolicy:     {answerMemory: answerSmall},
	nsid.GetCursors:          {answerMemory: answerRoster, standby: true},
	// It can cause look-ups at hosts that callers choose.
	nsid.GetDeliveryService:  {answerMemory: answerSmall, cost: costFind},
	nsid.GetEpoch:            {answerMemory: answerSmall},
	nsid.GetGroupInfo:        {answerMemory: answerObject, standby: true},
	nsid.GetInvitationPolicy: {answerMemory: answerSmall},
	nsid.GetInvitations:      {answerMemory: answerCounts, standby: true},
	nsid.GetKeyPackageStats:  {answerMemory: answerCounts, standby: true},
	nsid.GetKeyPackages: {answerMemory: answerObject, expensive: true, token: usedByHandler, recordLife: recordClaim, minLife: minClaim,
		maxLife: keypackages.KeepEnded, // its records refer to KeyPackages
		violations: []violation{
			{"dids", lexcodec.RuleMaxLength, mlsapi.ErrTooManyDids},
			{"dids", lexcodec.RuleFormat, mlsapi.ErrInvalidDid},
		}},
	// A head reads the log behind the last one, and signs.
	nsid.GetLogHead:            {answerMemory: answerCounts, expensive: true, cost: costHead},
	nsid.GetLogProof:           {answerMemory: answerSmall, expensive: true, cost: costHead},
	nsid.GetMessages:           {answerMemory: answerPage, standby: true},
	nsid.GetOwnKeyPackages:     {answerMemory: answerCounts},
	nsid.GetReportKey:          {answerMemory: answerSmall},
	nsid.GetSubscriptionTicket: {answerMemory: answerSmall, token: usedByDispatch},
	nsid.GetWelcome:            {answerMemory: answerObject, countOutcomes: true},
	nsid.GetWelcomeStatus:      {answerMemory: answerCounts},
	nsid.LeaveConvo:            {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.ProcessExternalCommit: {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.PublishGroupInfo:      {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.PublishKeyPackage: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer,
		violations: []violation{
			{"keyPackage", lexcodec.RuleMaxLength, mlsapi.ErrInvalidKeyPackage},
			{"keyPackage", lexcodec.RuleFormat, mlsapi.ErrInvalidKeyPackage},
		}},
	nsid.PublishKeyPackages: {maxBody: bodyPackages, answerMemory: answerCounts, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer,
		violations: []violation{{"keyPackages", lexcodec.RuleMaxLength, mlsapi.ErrTooManyKeyPackages}}},
	nsid.PutAttachmentPart: {maxBody: bodyPart, answerMemory: answerSmall, token: usedByDispatch, maxTime: maxUpload},
	// Its session must be the request's. A service-auth token gets that far, and no farther.
	nsid.RefreshSession: {maxBody: bodySmall, answerMemory: answerSmall, cost: costSession, token: usedByDispatch},
	nsid.RegisterPushTarget: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget,
		violations: []violation{
			{"url", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
			{"token", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
			{"topic", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
		}},
	nsid.ReportConvo:  {maxBody: bodyReport, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.ReportCommit: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.ReportEpoch:  {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.ResetConvo:   {maxBody: bodyCommit, answerMemory: answerRoster, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.SendMessage: {maxBody: bodyMessage, answerMemory: answerSmall, token: usedByHandler,
		violations: []violation{
			{"ciphertext", lexcodec.RuleMaxLength, mlsapi.ErrMessageTooLarge},
			{"embedUri", lexcodec.RuleFormat, mlsapi.ErrInvalidAsset},
			{"embedType", lexcodec.RuleMaxLength, mlsapi.ErrInvalidAsset},
		}},
	// A signal that is dropped at once does not use its token up, which would write a row.
	nsid.SendSignal: {maxBody: bodySignal, answerMemory: answerSmall, token: usedByHandler,
		violations: []violation{{"payload", lexcodec.RuleMaxLength, mlsapi.ErrMessageTooLarge}}},
	nsid.SetCursorPolicy:      {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.SetInvitationPolicy:  {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.StreamConvoEvents:    {cost: costStream},
	nsid.SubmitCommit:         {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.SubscribeConvoEvents: {cost: costStream},
	nsid.UnblockActor:         {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.UnregisterPushTarget: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.UpdateCursor:         {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	nsid.WithdrawKeyPackages:  {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
}

// route is a method with the way to serve it and its policy.
type route struct {
	mlsapi.Route[*call]
	policy
}

// routes returns the routes by NSID, with the lifetimes that are set.
func routes(lifetimes idem.Lifetimes) map[string]*route {
	all := map[string]*route{}
	for _, r := range mlsapi.Routes[*call]() {
		p := methods[r.Method.NSID]
		if o, set := lifetimes[r.Method.NSID]; set {
			p.recordLife = o.Life
		}
		p.cost = max(p.cost, 1)
		all[r.Method.NSID] = &route{r, p}
	}
	return all
}

// nameOf is the method's own error name for a broken rule, or "".
func (p *policy) nameOf(v *lexcodec.Violation) string {
	field, _, _ := strings.Cut(v.Field, "[")
	for _, own := range p.violations {
		if own.field == field && own.rule == v.Rule {
			return own.name
		}
	}
	return ""
}

// Lifetimes returns the lifetimes of all operations as they are unless the operator sets others:
// the default, the methods that write records, push jobs and invitations.
func Lifetimes() idem.Lifetimes {
	operations := []idem.Operation{idem.Default, idem.Push, idem.Invitation}
	for name, p := range methods {
		if p.recordLife != 0 {
			operations = append(operations, idem.Operation{NSID: name, Life: p.recordLife, Least: p.minLife, Most: p.maxLife, Lease: p.lease})
		}
	}
	return idem.NewLifetimes(operations...)
}

// RetireKeys implements [idem.Retire] for all methods: it retires the keys of convos, commits and
// KeyPackages.
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	for _, retire := range []idem.Retire{convos.RetireKeys, messages.RetireKeys, keypackages.RetireKeys} {
		if err := retire(ctx, tx, keys); err != nil {
			return err
		}
	}
	return nil
}
