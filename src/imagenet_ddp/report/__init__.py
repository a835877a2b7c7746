"""Report on run folders: `leaderboard` compares several runs, and `page` describes one."""
