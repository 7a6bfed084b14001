// A line of sh for the watchdog. A killed PostgreSQL, and a killed initdb, leaves a little System V memory segment in the
// kernel, where no `rm` reaches it; line 7 of its pid file has the segment's key and number.
export const removeSegments =
  'for file in */postmaster.pid; do [ -r "$file" ] || continue; set -- $(sed -n 7p "$file"); [ -z "$2" ] || ipcrm -m "$2"; done'
