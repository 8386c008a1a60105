import MLSDeliveryDev
import TestSupport
import XCTest

@testable import MLSDelivery

/// Some days of a family against a real server, with a real MLS library: five people with up to eight devices write, get
/// new devices, lose and sign out old ones, stop and start their apps, invite, leave, and are removed, as a seed says.
/// After each day each device has read what was written while it was in the group, once and in order, and nothing else;
/// and the group can commit. MLSD_SWIFT_FAMILIES says how many seeds are played.
final class FamilyTests: XCTestCase {
    private static let (days, acts, mostDevices) = (5, 8, 8)

    /// A device, and what its app has stored.
    private final class Phone {
        let account: DID
        let name: String
        let storage = MemoryStorage()
        var messenger: Messenger?
        var key = Data()
        var id = ""
        var isIn = false // the group, as the test knows
        var expected: [String] = []
        var read: [Int: String] = [:]
        init(_ account: DID, _ name: String) { (self.account, self.name) = (account, name) }
    }

    private struct Violation: Error { var text: String }

    private var dev = DevServer(URL(fileURLWithPath: "/"))
    private var agent = ""

    func testFamilies() async throws {
        let environment = ProcessInfo.processInfo.environment
        guard let text = environment["MLSD_DEV_URL"], let url = URL(string: text), let program = environment["MLSD_AGENT"] else {
            throw XCTSkip("MLSD_DEV_URL names no mlsd-dev: use check.sh")
        }
        (dev, agent) = (DevServer(url), program)
        for seed in 1...(UInt64(environment["MLSD_SWIFT_FAMILIES"] ?? "") ?? 1) {
            let family = try await Family(dev, agent, seed)
            let begin = Date()
            do { try await family.live() } catch { XCTFail("seed \(seed): \(error); \(family.story.suffix(12).joined(separator: ", "))") }
            await family.end()
            let seconds = Int(Date().timeIntervalSince(begin).rounded())
            print("seed \(seed): \(family.story.count) acts, \(family.sent) messages, \(family.phones.count) devices, \(seconds) s")
        }
    }

    /// Plays one seed.
    private final class Family {
        let dev: DevServer
        let agent: String
        let accounts: MemoryAccounts
        let people: [DID]
        var random: Random
        var phones: [Phone] = []
        var story: [String] = []
        var sent = 0
        var convo = ""

        init(_ dev: DevServer, _ agent: String, _ seed: UInt64) async throws {
            (self.dev, self.agent, random) = (dev, agent, Random(seed: seed))
            people = try await dev.accounts(5)
            accounts = MemoryAccounts(people[0])
        }

        func live() async throws {
            for person in people { try await getPhone(of: person) }
            let first = try running(phones[0])
            let created = try await first.outbox.finished(first.create(with: Array(people[1...2])).id)
            guard let made = try created.answer(of: CreateConvo.self) else { throw Violation(text: "no convo: \(created.state)") }
            convo = made.id
            phones[0].isIn = true
            for phone in phones[1...2] { try await enter(phone) }
            try await settle()
            for day in 1...FamilyTests.days {
                for _ in 0..<FamilyTests.acts { try await act() }
                story.append("day \(day) ends")
                try await checkDay()
            }
        }

        func end() async { for phone in phones { await phone.messenger?.stop() } }

        // MARK: Acts

        private func act() async throws {
            let here = phones.filter { $0.isIn && $0.messenger != nil }
            guard let one = here.randomElement(using: &random), let messenger = one.messenger else { return try await open(phones.first { $0.isIn }) }
            let siblings = phones.filter { $0.account == one.account && $0.isIn && $0 !== one }
            switch Int.random(in: 0..<16, using: &random) {
            case 0..<6:
                sent += 1
                try await say(one, messenger, "message \(sent)")
            case 6 where here.count > 1:
                story.append("\(one.name) stops")
                await messenger.stop()
                one.messenger = nil
            case 7..<9: try await open(phones.filter { $0.isIn && $0.messenger == nil }.randomElement(using: &random))
            case 9..<11 where siblings.isEmpty && phones.filter({ !$0.id.isEmpty }).count < FamilyTests.mostDevices: try await getSecond(of: one)
            case 11: if let dead = siblings.first { try await remove(dead, by: messenger, signsOut: false) }
            case 12: if let old = siblings.first { try await remove(old, by: messenger, signsOut: true) }
            case 13: if let guest = people.filter({ person in !phones.contains { $0.account == person && $0.isIn } }).randomElement(using: &random) { try await invite(guest, messenger) }
            case 14 where Set(here.map(\.account)).count > 2: try await leave(one, messenger)
            case 15: try await removePerson(one, messenger)
            default: try await finish(messenger.rotate(convo), messenger)
            }
        }

        private func say(_ phone: Phone, _ messenger: Messenger, _ text: String) async throws {
            story.append("\(phone.name) says \(text)")
            try await finish(messenger.send(Data(text.utf8), to: convo), messenger)
            for one in phones where one.isIn { one.expected.append(text) }
        }

        private func getPhone(of person: DID) async throws {
            let phone = Phone(person, "\(people.firstIndex(of: person) ?? 0).\(phones.filter { $0.account == person }.count)")
            phones.append(phone)
            try await open(phone)
            let messenger = try running(phone)
            try await messenger.restock()
            for write in await messenger.outbox.pending { _ = try await messenger.outbox.finished(write.id) }
        }

        /// A new device enters by itself.
        private func getSecond(of one: Phone) async throws {
            story.append("\(one.name) has a second device")
            try await getPhone(of: one.account)
            guard let second = phones.last else { return }
            try await enter(second)
            try await settle()
        }

        private func enter(_ phone: Phone) async throws {
            let messenger = try running(phone)
            try await until("\(phone.name) enters") {
                if try await messenger.requests().contains(where: { $0.convoId == self.convo }) { try await messenger.accept(self.convo) }
                try await messenger.catchUp()
                return try await messenger.records.read(MLSDelivery.Thread.self, MLSDelivery.Thread.prefix + self.convo).map { $0.left != true } == true
            }
            phone.isIn = true
        }

        private func remove(_ dead: Phone, by messenger: Messenger, signsOut: Bool) async throws {
            story.append("\(dead.name) " + (signsOut ? "signs out" : "is lost"))
            if signsOut {
                try await open(dead)
                try await collect(dead)
                try await dead.messenger?.signOut()
                let left = await dead.storage.values
                if !left.isEmpty { throw Violation(text: "\(dead.name) has left \(left.keys.sorted())") }
            } else {
                await dead.messenger?.stop()
            }
            try await messenger.removeDevice(dead.id)
            (dead.messenger, dead.isIn, dead.id) = (nil, false, "")
            if !signsOut { dead.expected = dead.read.keys.sorted().compactMap { dead.read[$0] } } // nobody reads with it any more
            try await settle()
        }

        private func invite(_ guest: DID, _ messenger: Messenger) async throws {
            story.append("\(people.firstIndex(of: guest) ?? 0) is invited")
            let theirs = phones.filter { $0.account == guest && !$0.id.isEmpty }
            for phone in theirs {
                try await open(phone)
                try await running(phone).restock()
            }
            try await finish(messenger.add([guest], to: convo), messenger)
            for phone in theirs { try await enter(phone) }
            try await settle()
        }

        private func leave(_ one: Phone, _ messenger: Messenger) async throws {
            story.append("\(one.name) leaves")
            for phone in phones where phone.account == one.account && phone.isIn { try await collect(phone) }
            try await finish(messenger.leave(convo), messenger)
            for phone in phones where phone.account == one.account { phone.isIn = false }
            try await settle()
        }

        /// An admin removes somebody. The others may not.
        private func removePerson(_ one: Phone, _ messenger: Messenger) async throws {
            guard try await messenger.admins(convo).contains(one.account) else { return }
            guard let gone = phones.filter({ $0.isIn && $0.account != one.account }).randomElement(using: &random) else { return }
            if Set(phones.filter(\.isIn).map(\.account)).count < 3 { return }
            story.append("\(one.name) removes \(gone.name)")
            try await finish(messenger.remove(gone.account, from: convo), messenger)
            for phone in phones where phone.account == gone.account { phone.isIn = false }
            try await settle()
        }

        private func open(_ phone: Phone?) async throws {
            guard let phone, phone.messenger == nil else { return }
            story.append("\(phone.name) starts")
            let (account, program) = (phone.account, agent)
            let messenger = try await Messenger(
                account: account, service: Service(dev.route(account)), accounts: accounts.as(account), decide: { $0.why == .left }, storage: phone.storage
            ) { try await AgentDevice.load($0, account: account, program: program) }
            (phone.key, phone.id) = try await (messenger.mls.signatureKey, messenger.mls.deviceID)
            try await messenger.start()
            phone.messenger = messenger
            try await messenger.listDevice()
        }

        // MARK: What must be true

        private func running(_ phone: Phone) throws -> Messenger {
            guard let messenger = phone.messenger else { throw Violation(text: "\(phone.name) does not run") }
            return messenger
        }

        private func finish(_ write: Write?, _ messenger: Messenger) async throws {
            guard let write else { return }
            if case .refused(let error) = try await messenger.outbox.finished(write.id).state { throw Violation(text: "\(write.nsid) was refused: \(error)") }
        }

        /// Waits for at most a minute.
        private func until(_ what: String, _ isTrue: () async throws -> Bool) async throws {
            let limit = Date().addingTimeInterval(60)
            while try await !isTrue() { if Date() > limit { throw Violation(text: what + ": not in a minute") } }
        }

        /// Waits until all devices that run have the group with the devices that are in.
        private func settle() async throws {
            let wanted = Set(phones.filter(\.isIn).map(\.key))
            for phone in phones where phone.isIn {
                guard let messenger = phone.messenger else { continue }
                var last: [String] = []
                do {
                    try await until("\(phone.name) sees the group") {
                        try await messenger.sync(convo)
                        let members = try await messenger.mls.members(of: messenger.thread(convo).groupId) ?? []
                        last = members.map { leaf in phones.first { $0.key == leaf.signatureKey }?.name ?? "?" }
                        return Set(members.map(\.signatureKey)) == wanted
                    }
                } catch let violation as Violation { throw Violation(text: violation.text + ": \(last) for \(phones.filter(\.isIn).map(\.name))") }
            }
        }

        private func collect(_ phone: Phone) async throws {
            guard let messenger = phone.messenger, try await messenger.convos().contains(convo) else { return }
            do { try await messenger.sync(convo) } catch let error as ServiceError where error.name == .notMember && !phone.isIn {}
            let entries = try await messenger.inbox(convo)
            for entry in entries {
                let text: String? = switch entry.content {
                case .message(let data), .own(let data): String(decoding: data, as: UTF8.self)
                default: nil
                }
                guard let text, text.hasPrefix("message") else { continue }
                if phone.read.updateValue(text, forKey: entry.seq) != nil { throw Violation(text: "\(phone.name) has read \(text) twice") }
            }
            try await messenger.taken(entries)
        }

        private func checkDay() async throws {
            for phone in phones where !phone.id.isEmpty { try await open(phone) }
            try await settle()
            for phone in phones where !phone.id.isEmpty {
                try await until("\(phone.name) reads \(phone.expected.suffix(3))") {
                    try await collect(phone)
                    return phone.read.count >= phone.expected.count
                }
            }
            for phone in phones {
                let read = phone.read.keys.sorted().compactMap { phone.read[$0] }
                if read != phone.expected { throw Violation(text: "\(phone.name) has read \(read), and must have read \(phone.expected)") }
            }
            for phone in phones where phone.isIn {
                guard let messenger = phone.messenger else { continue }
                let refused = await messenger.outbox.refused.map(\.nsid)
                if !refused.isEmpty { throw Violation(text: "\(phone.name) has refused writes: \(refused)") }
            }
            if let messenger = phones.first(where: { $0.isIn })?.messenger { try await finish(messenger.rotate(convo), messenger) }
            try await settle()
        }
    }
}
