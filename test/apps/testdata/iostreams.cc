// Streams, buffers and std::filesystem in the directory given.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>
#include <algorithm>

namespace fs = std::filesystem;

static void step(const char *name) { std::cout << "-- " << name << std::endl; }

static void text(const fs::path &dir)
{
	step("text");
	{
		std::ofstream out(dir / "text");
		for (int i = 0; i < 1000; i++)
			out << "line " << std::setw(5) << i << ' ' << std::hex << i << std::dec << '\n';
		std::cout << out.good() << ' ' << out.tellp() << std::endl;
	}
	std::ifstream in(dir / "text");
	std::string line, word;
	int lines = 0, number;
	in >> word >> number >> word;
	std::cout << number << ' ' << word << '\n';
	while (std::getline(in, line))
		lines++;
	std::cout << lines << ' ' << in.eof() << '\n';
	in.clear();
	in.seekg(-8, std::ios::end);
	std::getline(in, line);
	std::cout << line << ' ' << in.tellg() << '\n';
	in.seekg(5);
	std::cout << static_cast<char>(in.peek()) << in.rdbuf()->in_avail() << '\n';
	std::ostringstream all;
	in.seekg(0);
	all << in.rdbuf();
	std::cout << all.str().size() << std::endl;
}

static void binary(const fs::path &dir)
{
	step("binary");
	std::vector<double> a(200000), b(a.size());
	for (size_t i = 0; i < a.size(); i++)
		a[i] = 1.0 / static_cast<double>(i + 1);
	std::fstream f(dir / "binary", std::ios::in | std::ios::out | std::ios::binary | std::ios::trunc);
	f.write(reinterpret_cast<const char *>(a.data()), static_cast<std::streamsize>(a.size() * sizeof a[0]));
	f.seekp(8);
	f.write("overlaid", 8);
	f.flush();
	f.seekg(0);
	f.read(reinterpret_cast<char *>(b.data()), static_cast<std::streamsize>(b.size() * sizeof b[0]));
	std::cout << f.gcount() << ' ' << (b[0] == a[0]) << (b[1] == a[1]) << (b.back() == a.back()) << '\n';
	f.get();
	std::cout << f.eof() << f.fail() << std::endl;
	f.close();

	std::ofstream more(dir / "binary", std::ios::binary | std::ios::app);
	more << "appended";
	std::cout << more.tellp() << std::endl;
}

static void buffers(const fs::path &dir)
{
	step("buffers");
	std::filebuf raw;
	raw.pubsetbuf(nullptr, 0);
	std::cout << (raw.open(dir / "raw", std::ios::out) != nullptr);
	raw.sputn("unbuffered", 10);
	std::cout << fs::file_size(dir / "raw");
	std::cout << (raw.close() != nullptr) << '\n';
	std::vector<char> large(1 << 20);
	std::ofstream out;
	out.rdbuf()->pubsetbuf(large.data(), static_cast<std::streamsize>(large.size()));
	out.open(dir / "large");
	for (int i = 0; i < 300000; i++)
		out << i << '\n';
	out.close();
	std::cout << fs::file_size(dir / "large") << '\n';
	std::wofstream wide(dir / "wide");
	wide << L"wide " << 42 << std::endl;
	std::wifstream back(dir / "wide");
	std::wstring w;
	back >> w;
	std::cout << w.size() << std::endl;
}

static void errors(const fs::path &dir)
{
	step("errors");
	std::ifstream none(dir / "none");
	std::ofstream directory(dir);
	std::ofstream inside(dir / "none" / "file");
	std::cout << none.is_open() << directory.is_open() << inside.is_open() << '\n';
	std::ifstream in;
	in.exceptions(std::ios::failbit);
	try {
		in.open(dir / "none");
	} catch (const std::ios_base::failure &e) {
		std::cout << "failure\n";
	}
	std::ifstream unwritable(dir / "text");
	std::cout << (unwritable.rdbuf()->sputc('x') == EOF) << std::endl;
}

static void names(const fs::path &dir)
{
	step("filesystem");
	std::error_code e;
	std::cout << fs::create_directories(dir / "a/b/c") << fs::create_directory(dir / "a", e) << e.value() << '\n';
	fs::copy_file(dir / "text", dir / "a/copy");
	fs::copy(dir / "a", dir / "tree", fs::copy_options::recursive);
	fs::create_symlink("copy", dir / "a/soft");
	fs::create_hard_link(dir / "a/copy", dir / "a/hard");
	std::cout << fs::hard_link_count(dir / "a/copy") << fs::read_symlink(dir / "a/soft") << '\n';
	std::cout << (fs::canonical(dir / "a/./soft") == fs::canonical(dir) / "a/copy") << fs::equivalent(dir / "a/soft", dir / "a/hard") << '\n';
	fs::rename(dir / "tree", dir / "moved");
	fs::resize_file(dir / "a/copy", 100);
	fs::permissions(dir / "a/copy", fs::perms::owner_read);
	std::cout << static_cast<int>(fs::status(dir / "a/copy").permissions()) << '\n';
	fs::last_write_time(dir / "a/copy", fs::file_time_type(std::chrono::seconds(1000)));
	std::cout << fs::last_write_time(dir / "a/copy").time_since_epoch().count() << '\n';
	std::vector<std::string> all;
	for (const auto &entry : fs::recursive_directory_iterator(dir))
		all.push_back(entry.path().lexically_relative(dir).string() + (entry.is_directory() ? "/" : entry.is_symlink() ? "@" : ""));
	std::sort(all.begin(), all.end());
	for (const auto &name : all)
		std::cout << name << '\n';
	fs::current_path(dir / "moved");
	std::cout << fs::exists("copy") << fs::is_empty("b/c") << (fs::absolute("copy") == fs::current_path() / "copy") << '\n';
	fs::current_path("/");
	fs::remove(dir / "moved/b/c");
	fs::remove(dir / "moved/b", e);
	fs::remove(dir / "moved", e);
	std::cout << e.value() << ' ' << fs::remove_all(dir / "moved") << ' ' << (fs::space(dir).capacity > 0) << std::endl;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	fs::path dir(argv[1]);
	text(dir);
	binary(dir);
	buffers(dir);
	errors(dir);
	names(dir);
	std::ofstream redirected(dir / "cout");
	std::streambuf *terminal = std::cout.rdbuf(redirected.rdbuf());
	std::cout << "into a file" << std::endl;
	std::cout.rdbuf(terminal);
	return 0;
}
