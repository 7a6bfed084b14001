// Which addresses a webhook may be sent to: public ones, and what the operator has allowed. Customers choose the URLs, and a sender inside
// of a network must not reach for them what they cannot reach themselves: databases, admin pages, the metadata of a cloud.

import { BlockList, isIP } from 'node:net'
import { invalidArgument } from '../../core/errors.ts'

export interface AddressGuard {
  /** May not be connected to. `host` is the name that the address belongs to, or the address itself. */
  refuses(host: string, address: string): boolean
}

// The registry of special-purpose addresses (RFC 6890 and later), and one address of Azure's own that answers from every machine there.
const refusedIpv4 = subnets([
  '0.0.0.0/8', // this host
  '10.0.0.0/8', // private
  '100.64.0.0/10', // carriers (CGNAT), and the metadata of Alibaba
  '127.0.0.0/8', // loopback
  '168.63.129.16/32', // Azure's host
  '169.254.0.0/16', // link-local, and the metadata of AWS, Google and Azure
  '172.16.0.0/12', // private
  '192.0.0.0/24', // protocols, and the metadata of Oracle
  '192.0.2.0/24', // documentation
  '192.88.99.0/24', // 6to4 relays
  '192.168.0.0/16', // private
  '198.18.0.0/15', // benchmarks
  '198.51.100.0/24', // documentation
  '203.0.113.0/24', // documentation
  '224.0.0.0/4', // multicast
  '240.0.0.0/4', // reserved, and broadcast
])

// Only global unicast is public at all. So IPv4 inside of IPv6 (::ffff:0:0/96, NAT64 64:ff9b::/96), private (fc00::/7, with fd00:ec2::254),
// link-local, loopback and multicast are refused without being named.
const globalIpv6 = subnets(['2000::/3'])
const refusedIpv6 = subnets([
  '2001::/23', // protocols: Teredo and others that hold an IPv4 address
  '2001:db8::/32', // documentation
  '2002::/16', // 6to4: holds an IPv4 address
  '3fff::/20', // documentation
])

/** `allow`: addresses, ranges (`10.1.0.0/16`) and names of hosts. A name that is allowed may have any address. */
export function addressGuard(allow: readonly string[] = []): AddressGuard {
  const hosts = new Set<string>()
  const ranges: string[] = []
  for (const given of allow) {
    if (isRange(given)) ranges.push(given)
    else if (isHostname(given)) hosts.add(given.toLowerCase())
    else
      throw invalidArgument(
        `allow: expected an address, a range such as "10.1.0.0/16" or the name of a host, got ${JSON.stringify(given)}`,
      )
  }
  const allowed = subnets(ranges)
  return {
    refuses(host, address) {
      if (hosts.has(host.toLowerCase())) return false
      const family = familyOf(address)
      // An address with a zone is link-local.
      if (!family || address.includes('%')) return true
      if (allowed.check(address, family)) return false
      if (family === 'ipv4') return refusedIpv4.check(address, family)
      return !globalIpv6.check(address, family) || refusedIpv6.check(address, family)
    },
  }
}

function familyOf(address: string): 'ipv4' | 'ipv6' | undefined {
  const version = isIP(address)
  return version === 4 ? 'ipv4' : version === 6 ? 'ipv6' : undefined
}

function subnets(ranges: readonly string[]): BlockList {
  const list = new BlockList()
  for (const range of ranges) {
    const [address, bits] = range.split('/') as [string, string?]
    const family = familyOf(address)!
    if (bits === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(bits), family)
  }
  return list
}

function isRange(given: string): boolean {
  const [address = '', bits, ...more] = given.split('/')
  const family = familyOf(address)
  if (!family || more.length > 0) return false
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 'ipv4' ? 32 : 128))
}

function isHostname(given: string): boolean {
  return /^[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?$/i.test(given) && !/^[\d.]+$/.test(given)
}
